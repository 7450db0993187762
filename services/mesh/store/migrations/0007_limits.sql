-- Limits per key: jobs with the same concurrency key share a bound of how many run at once.
ALTER TABLE jobs ADD COLUMN concurrency_key text;

-- What a claim finds them by: a hash of namespace and concurrency key.
ALTER TABLE queue ADD COLUMN limit_key uuid;

-- For a claim that has to look past a crowd of jobs whose key is full: from key to key, one probe each.
-- Jobs without a concurrency key never enter it.
CREATE INDEX queue_keys ON queue (type, limit_key, priority DESC, due_time, job_id)
    WHERE limit_key IS NOT NULL;
