-- Whether a job that has ended must stay: others are still to be told of its end. The table that says so
-- comes with dependencies; the function looks for it when it runs, so that it holds with or without.
CREATE FUNCTION must_stay(job uuid) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF to_regclass('ended_parents') IS NULL THEN
        RETURN false;
    END IF;
    RETURN EXISTS (SELECT FROM ended_parents p WHERE p.job_id = job);
END
$$;
