-- Namespaces of effects: tenant + "/" + name.
CREATE TABLE namespace (id {id}, name TEXT NOT NULL UNIQUE) {strict};

-- A side effect: one row for each unit of work that somebody began. Times are
-- Unix ms, spans are ms, 0 where there is none.
CREATE TABLE effect (
  id          {id},
  namespace_id {int} NOT NULL,
  key         {blob} NOT NULL,            -- 32 bytes
  step_id     {int} NOT NULL,
  state       {int} NOT NULL,             -- 1 pending, 2 completed, 3 failed, 4 unknown
  mode        {int} NOT NULL,             -- 1 api, 2 cli, 3 forward
  fence       {int} NOT NULL,             -- of the latest grant
  epoch       {int} NOT NULL,             -- of the downstream key
  lease_until {int} NOT NULL,
  lease_limit {int} NOT NULL,             -- no extension goes past it
  retry_at    {int} NOT NULL,             -- failed: no grant before it
  confirm     {int} NOT NULL,             -- 0 no, 1 the holder must extend before it acts, 2 it did
  boot        {int} NOT NULL,             -- process that granted or extended the lease
  instance_id {int} NOT NULL,             -- that forwards; 0 otherwise
  on_unknown  {int} NOT NULL,             -- 1 hold, 2 probe, 3 retry
  lease       {int} NOT NULL,
  max_lease   {int} NOT NULL,
  drain       {int} NOT NULL,
  retention   {int} NOT NULL,
  tombstone   {int} NOT NULL,
  idempotent  {int} NOT NULL,             -- the downstream honours our key
  duplicates  {int} NOT NULL,             -- effects reported beside the one that counts
  completed_at {int} NOT NULL,
  completed_by {int} NOT NULL,            -- a fence; 0 resolved, not reported
  expires_at  {int} NOT NULL,             -- completed: when the result goes
  tombstone_until {int} NOT NULL,         -- completed: when the row goes
  sweep_at    {int} NOT NULL,             -- when the sweeper has something to do; 0 never
  created_at  {int} NOT NULL,
  updated_at  {int} NOT NULL,
  fingerprint {blob},                     -- of the input of the latest grant
  resolved_by TEXT NOT NULL,
  reason      TEXT NOT NULL,
  resource_id TEXT NOT NULL,
  status      {int} NOT NULL,             -- of an HTTP response, 0 for a JSON result
  header      TEXT NOT NULL,              -- JSON
  truncated   {int} NOT NULL,
  body        {blob},
  UNIQUE (namespace_id, key)
) {strict};
CREATE INDEX effect_open ON effect (state, id) WHERE state IN (1, 3, 4);
CREATE INDEX effect_sweep ON effect (sweep_at) WHERE sweep_at > 0;

-- One grant of an effect, and what became of it. Tokens are kept as hashes.
CREATE TABLE attempt (
  effect_id   {int} NOT NULL,
  fence       {int} NOT NULL,
  token       {blob} NOT NULL,            -- SHA-256
  started_at  {int} NOT NULL,
  ended_at    {int} NOT NULL,             -- 0 while running
  outcome     {int} NOT NULL,             -- 1 running, 2 done, 3 none, 4 unknown
  closed      {int} NOT NULL,             -- before a reopening
  duplicate   {int} NOT NULL,             -- counted in effect.duplicates
  resource_id TEXT NOT NULL,
  note        TEXT NOT NULL,
  PRIMARY KEY (effect_id, fence)
) {strict without rowid};

CREATE VIEW v_effects AS
SELECT n.name AS namespace, lower(hex(e.key)) AS key, s.name AS step,
       CASE e.state WHEN 1 THEN 'pending' WHEN 2 THEN 'completed' WHEN 3 THEN 'failed' WHEN 4 THEN 'unknown' END AS state,
       CASE e.mode WHEN 1 THEN 'api' WHEN 2 THEN 'cli' WHEN 3 THEN 'forward' END AS mode,
       e.fence, e.resource_id, e.duplicates,
       strftime('%Y-%m-%dT%H:%M:%SZ', e.created_at / 1000, 'unixepoch') AS created,
       strftime('%Y-%m-%dT%H:%M:%SZ', nullif(e.lease_until, 0) / 1000, 'unixepoch') AS lease_until,
       strftime('%Y-%m-%dT%H:%M:%SZ', nullif(e.completed_at, 0) / 1000, 'unixepoch') AS completed,
       e.resolved_by, e.reason
FROM effect e
LEFT JOIN namespace n ON n.id = e.namespace_id
LEFT JOIN step s ON s.id = e.step_id;
