-- Whose job waits: so that claims can begin with each namespace in turn. See docs/adr/0015.
-- Rows from before, and those of an older version that runs beside, have none: they are claimed in the order of
-- the line, as they always were. The order of bytes is the quickest to compare, and the same on every server.
ALTER TABLE queue ADD COLUMN namespace text COLLATE "C";

COMMENT ON COLUMN queue.namespace IS 'The tenant of the job; none in rows of versions that did not write it.';

-- From namespace to namespace, and within each highest priority first, longest due first. That only rows with a
-- namespace are in it keeps it out of the plans of statements that do not ask for one.
CREATE INDEX queue_turns ON queue (type, namespace, priority DESC, due_time)
    WHERE namespace IS NOT NULL;
