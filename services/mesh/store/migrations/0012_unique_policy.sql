-- What the submission of a job said shall happen when its unique key is held: shown with the job, and
-- taken over by the job that repeats it. NULL for jobs without a key, and for those of older versions.
ALTER TABLE jobs ADD COLUMN unique_policy smallint;
