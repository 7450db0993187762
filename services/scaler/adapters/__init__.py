"""The Scaler's ports filled: etcd, the Orchestrator, workers, and the process driver."""
