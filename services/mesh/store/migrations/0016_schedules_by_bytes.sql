-- Pages of schedules go by the order of bytes, whatever the collation of the database: pages of several shards
-- are put together in that order, and a name that one of them sorts otherwise would be left out.
CREATE INDEX schedules_list ON schedules (namespace, name COLLATE "C");
