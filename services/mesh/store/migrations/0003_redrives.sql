-- The last job that repeats this one. Set on a job that has ended, guarded by its old value, so that two
-- callers who ask at once get the same job. Not a transition: the job stays as it ended.
ALTER TABLE jobs ADD COLUMN redrive_id uuid;
