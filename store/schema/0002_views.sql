-- The report's figures, one SELECT away in the sqlite3 shell. Days and times are
-- UTC; a call is of the day it began. Money that is not known is NULL, never 0.

CREATE VIEW v_calls AS
SELECT c.id,
       strftime('%Y-%m-%dT%H:%M:%SZ', (c.id >> 22) / 1000, 'unixepoch') AS at,
       tenant.name AS tenant, step.name AS step, run.name AS run, model.name AS model,
       CASE c.endpoint WHEN 1 THEN 'chat/completions' WHEN 2 THEN 'responses' WHEN 3 THEN 'completions'
                       WHEN 4 THEN 'embeddings' ELSE 'other' END AS endpoint,
       CASE c.outcome WHEN 0 THEN 'open' WHEN 1 THEN 'miss' WHEN 2 THEN 'hit' WHEN 3 THEN 'collapsed' WHEN 4 THEN 'bypass'
                      WHEN 5 THEN 'refused' WHEN 6 THEN 'failed' WHEN 7 THEN 'lost' END AS outcome,
       printf('%016x', c.key64) AS key, c.status, c.attempt, c.retry,
       c.input,
       CASE c.basis WHEN 0 THEN 'exact' WHEN 1 THEN 'rule' WHEN 2 THEN 'estimate' WHEN 3 THEN 'fallback-encoding' END AS basis,
       c.correction, c.resent, c.up_input IS NOT NULL AS upstream, c.up_input, c.up_cached, c.up_output, c.up_reasoning,
       c.cost / 1e6 AS cost_usd, c.avoided_input, c.avoided_output, nullif(c.avoided_cost, 0) / 1e6 AS avoided_usd,
       c.first_us / 1e3 AS first_ms, c.total_us / 1e3 AS total_ms, c.finish,
       c.flags & 1 <> 0 AS streamed, c.flags & 2 <> 0 AS usage_estimated,
       c.flags & 4 <> 0 AS over_budget, c.flags & 8 <> 0 AS near_budget,
       c.flags & 16 <> 0 AS client_left, c.flags & 32 <> 0 AS refreshed, c.flags & 64 <> 0 AS rejected,
       c.flags & 128 <> 0 AS stored, c.flags & 256 <> 0 AS usage_odd, c.flags & 512 <> 0 AS uncounted,
       c.flags & 1024 <> 0 AS tools, c.flags & 2048 <> 0 AS tool_calls, c.flags & 4096 <> 0 AS images,
       c.flags & 8192 <> 0 AS audio, c.flags & 16384 <> 0 AS structured,
       c.source
FROM call c
LEFT JOIN tenant ON tenant.id = c.tenant_id
LEFT JOIN step   ON step.id = c.step_id
LEFT JOIN run    ON run.id = c.run_id
LEFT JOIN model  ON model.id = c.model_id;

CREATE VIEW v_steps_daily AS
SELECT strftime('%Y-%m-%d', r.hour * 3600, 'unixepoch') AS day, tenant.name AS tenant, step.name AS step,
       sum(r.calls) AS calls, sum(r.upstream) AS upstream_calls,
       sum(CASE WHEN r.outcome IN (2, 3) THEN r.calls ELSE 0 END) AS served_again,
       sum(CASE WHEN r.outcome = 5 THEN r.calls ELSE 0 END) AS refused,
       sum(CASE WHEN r.outcome = 6 THEN r.calls ELSE 0 END) AS failed,
       sum(CASE WHEN r.outcome = 7 THEN r.calls ELSE 0 END) AS lost,
       sum(r.flagged) AS flagged,
       sum(r.input) AS input, sum(r.cached) AS cached, sum(r.output) AS output, sum(r.reasoning) AS reasoning,
       sum(r.counted) AS counted, sum(r.resent) AS resent,
       CASE WHEN sum(r.cost) > 0 OR sum(r.unpriced) = 0 THEN sum(r.cost) / 1e6 END AS cost_usd,
       sum(r.unpriced) AS unpriced_calls,
       sum(r.avoided_input) AS avoided_input, sum(r.avoided_output) AS avoided_output, nullif(sum(r.avoided_cost), 0) / 1e6 AS avoided_usd
FROM rollup r
LEFT JOIN tenant ON tenant.id = r.tenant_id
LEFT JOIN step   ON step.id = r.step_id
GROUP BY 1, 2, 3 HAVING sum(r.calls) > 0;

-- Work that was asked for more than once, and what that would have cost.
CREATE VIEW v_retries AS
SELECT tenant, step, key, min(at) AS first_at, max(at) AS last_at, count(*) AS calls,
       sum(upstream) AS upstream_calls,
       sum(outcome IN ('hit', 'collapsed')) AS served_again,
       sum(avoided_input) AS avoided_input, sum(avoided_output) AS avoided_output, sum(avoided_usd) AS avoided_usd
FROM v_calls WHERE key <> '0000000000000000' AND outcome <> 'open'
GROUP BY tenant, step, key HAVING count(*) > 1;

-- Windows of budgets; the limits stand in the configuration.
CREATE VIEW v_budgets AS
SELECT tenant.name AS tenant, coalesce(step.name, '(all steps)') AS step, run.name AS run,
       CASE c.unit WHEN 1 THEN 'input_tokens' WHEN 2 THEN 'output_tokens' WHEN 3 THEN 'tokens' WHEN 4 THEN 'calls' WHEN 5 THEN 'usd' END AS unit,
       CASE c.per WHEN 2 THEN 'run' WHEN 3 THEN 'minute' WHEN 4 THEN 'hour' WHEN 5 THEN 'day' WHEN 6 THEN 'week' WHEN 7 THEN 'month' WHEN 8 THEN 'total' END AS per,
       CASE WHEN c.window_start = 0 THEN NULL ELSE strftime('%Y-%m-%dT%H:%M:%SZ', c.window_start, 'unixepoch') END AS window_start,
       CASE c.unit WHEN 5 THEN c.used / 1e6 ELSE c.used END AS used,
       CASE c.unit WHEN 5 THEN c.reserved / 1e6 ELSE c.reserved END AS reserved
FROM counter c
LEFT JOIN tenant ON tenant.id = c.tenant_id
LEFT JOIN step   ON step.id = c.step_id
LEFT JOIN run    ON run.id = c.run_id;
