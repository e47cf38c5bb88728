-- Names are stored once; 0 means none.
CREATE TABLE tenant (id {id}, name TEXT NOT NULL UNIQUE) {strict};
CREATE TABLE step   (id {id}, name TEXT NOT NULL UNIQUE) {strict};
CREATE TABLE model  (id {id}, name TEXT NOT NULL UNIQUE) {strict};
CREATE TABLE run    (id {id}, name TEXT NOT NULL UNIQUE) {strict};
CREATE TABLE work   (id {id}, name TEXT NOT NULL UNIQUE) {strict};

-- Values the server makes once and needs for ever, such as its secret.
CREATE TABLE setting (name TEXT PRIMARY KEY, value {blob} NOT NULL) {strict};

-- A running process. It renews alive_until (ms); a process whose time is past
-- is dead, its leases are free and its open calls are lost. It may only have
-- slept, so its id is never given to another.
CREATE TABLE instance (
  id          {unique id},
  name        TEXT NOT NULL,
  alive_until {int} NOT NULL
) {strict};

-- A stored answer. Never updated by a hit; body last, so that reading the other
-- columns does not touch its pages.
CREATE TABLE entry (
  id          {id},
  key         {blob} NOT NULL UNIQUE,
  fence       {int} NOT NULL,             -- id of the call that made it
  fingerprint {blob},                     -- the body's own key, where the key was explicit
  tenant_id   {int} NOT NULL,
  step_id     {int} NOT NULL,
  model_id    {int} NOT NULL,
  created_at  {int} NOT NULL,             -- ms
  expires_at  {int} NOT NULL,             -- ms
  input       {int} NOT NULL,             -- tokens counted before the call
  basis       {int} NOT NULL,
  up_input    {int},                      -- tokens the upstream reported, NULL if it did not
  up_cached   {int},
  up_output   {int},
  up_reasoning {int},
  cost        {int},                      -- micro-USD, NULL where no price is known
  form        {int} NOT NULL,             -- 1 JSON, 2 SSE
  codec       {int} NOT NULL,             -- 0 plain, 1 zstd
  size        {int} NOT NULL,             -- bytes of body as stored
  raw_size    {int} NOT NULL,             -- bytes of body decoded
  crc         {int} NOT NULL,             -- CRC-32C of the decoded body
  header      TEXT NOT NULL,              -- JSON
  body        {blob} NOT NULL
) {strict};

-- When each entry was last served, for eviction. Written in groups, after the
-- answers: what a paid call waits for touches as few pages as it can.
CREATE TABLE served (
  entry_id    {id},
  at          {int} NOT NULL,             -- ms
  size        {int} NOT NULL,             -- of the entry
  expires_at  {int} NOT NULL              -- of the entry
) {strict};
CREATE INDEX served_at ON served (at, size);
CREATE INDEX served_expiry ON served (expires_at);

-- Who is calling upstream for a key. It holds while the instance lives.
CREATE TABLE lease (
  key         {blob} PRIMARY KEY,
  fence       {int} NOT NULL,             -- id of the leading call
  instance_id {int} NOT NULL,
  fingerprint {blob}
) {strict without rowid};

-- The ledger: one row a call. id = Unix ms << 22 | sequence, so ids order by time.
CREATE TABLE call (
  id          {id},
  tenant_id   {int} NOT NULL,
  step_id     {int} NOT NULL,
  run_id      {int} NOT NULL,
  model_id    {int} NOT NULL,
  key64       {int} NOT NULL,             -- first 8 bytes of the key, 0 without one
  endpoint    {int} NOT NULL,
  outcome     {int} NOT NULL,             -- see v_calls
  status      {int} NOT NULL,             -- HTTP status sent, 0 while open
  attempt     {int} NOT NULL,             -- nth call for its key, 0 without one; served ones count while a process lives
  retry       {int} NOT NULL,             -- the client SDK's own retry count
  flags       {int} NOT NULL,             -- bits, see v_calls
  input       {int} NOT NULL,             -- tokens counted before the call
  basis       {int} NOT NULL,             -- 0 exact, 1 rule, 2 estimate, 3 fallback-encoding
  resent      {int} NOT NULL,             -- of input: sent before by the same step and run
  up_input    {int},                      -- what the upstream reported; NULL without an upstream call or report
  up_cached   {int},
  up_output   {int},
  up_reasoning {int},
  cost        {int},                      -- micro-USD, NULL where no price is known
  avoided_input  {int} NOT NULL,
  avoided_output {int} NOT NULL,
  avoided_cost   {int} NOT NULL,
  first_us    {int} NOT NULL,             -- to the first byte sent
  total_us    {int} NOT NULL,
  finish      TEXT,                       -- finish reason, or the error's code
  source      {int} NOT NULL,             -- the call whose answer was served, else 0
  correction  {int} NOT NULL              -- of input: added by a factor learned from bills; 0 where a call cost nothing
) {strict};
-- Of hits (2) and collapsed calls (3) there are many, and nobody looks for one.
CREATE INDEX call_key ON call (key64) WHERE key64 <> 0 AND outcome NOT IN (2, 3);
CREATE INDEX call_run ON call (run_id) WHERE run_id <> 0;

-- Which unit of work a call was made for, where it said so.
CREATE TABLE work_call (call_id {id}, work_id {int} NOT NULL) {strict};

-- Upstream calls that are not finished yet: what recovery must settle.
CREATE TABLE open_call (call_id {id}, instance_id {int} NOT NULL) {strict};

-- Short hashes of each request's fields and messages, never their text.
CREATE TABLE fingerprint (call_id {id}, tree {blob} NOT NULL) {strict};

-- What a response kept upstream carries into a call that goes on from it by its
-- id, which is hashed with its tenant.
CREATE TABLE response (
  id      {blob} PRIMARY KEY,
  call_id {int} NOT NULL,
  tokens  {int} NOT NULL
) {strict without rowid};

-- Sums of closed calls by hour, kept in the transactions that close them.
CREATE TABLE rollup (
  hour        {int} NOT NULL,             -- Unix hours
  tenant_id   {int} NOT NULL,
  step_id     {int} NOT NULL,
  model_id    {int} NOT NULL,
  outcome     {int} NOT NULL,
  calls       {int} NOT NULL,
  upstream    {int} NOT NULL,             -- calls that reached an upstream
  retries     {int} NOT NULL,             -- calls for a key that was called before
  flagged     {int} NOT NULL,             -- calls over a budget that only flags
  input       {int} NOT NULL,             -- tokens paid for (upstream's figure, else our count)
  cached      {int} NOT NULL,
  output      {int} NOT NULL,
  reasoning   {int} NOT NULL,
  counted     {int} NOT NULL,             -- our count of the same calls' input
  resent      {int} NOT NULL,
  cost        {int} NOT NULL,
  unpriced    {int} NOT NULL,             -- upstream calls without a price
  avoided_input  {int} NOT NULL,
  avoided_output {int} NOT NULL,
  avoided_cost   {int} NOT NULL,
  total_us    {int} NOT NULL,
  PRIMARY KEY (hour, tenant_id, step_id, model_id, outcome)
) {strict without rowid};

-- What a budget's window has used and holds. Rules are not here: changing a
-- limit never changes what was used.
CREATE TABLE counter (
  id          {id},
  tenant_id   {int} NOT NULL,
  step_id     {int} NOT NULL,             -- 0: over all steps
  run_id      {int} NOT NULL,             -- 0 except in windows of one run
  unit        {int} NOT NULL,             -- 1 input_tokens, 2 output_tokens, 3 tokens, 4 calls, 5 usd (micro)
  per         {int} NOT NULL,             -- 2 run, 3 minute, 4 hour, 5 day, 6 week, 7 month, 8 total
  window_start {int} NOT NULL,            -- Unix s, 0 for run and total
  used        {int} NOT NULL,
  reserved    {int} NOT NULL,
  UNIQUE (tenant_id, step_id, run_id, unit, per, window_start)
) {strict};

-- What a running call holds in a counter, and what it costs if it is lost.
CREATE TABLE reservation (
  call_id     {int} NOT NULL,
  counter_id  {int} NOT NULL,
  unit        {int} NOT NULL,
  amount      {int} NOT NULL,             -- held in counter.reserved
  if_lost     {int} NOT NULL,             -- charged when the call is lost
  charged     {int} NOT NULL,             -- already charged: the call was given up as lost
  PRIMARY KEY (call_id, counter_id)
) {strict without rowid};
