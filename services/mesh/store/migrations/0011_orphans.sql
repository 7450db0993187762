-- By which the collector of orphaned objects finds who refers to an input. Jobs whose input is inline or
-- empty never enter it, and no transition changes what it holds.
CREATE INDEX jobs_input ON jobs ((input_ref ->> 'key')) WHERE input_ref IS NOT NULL;
