"""The scheduler's ends of the broker and of etcd. The shards' adapter is the chassis's own."""
