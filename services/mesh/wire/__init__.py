"""The one place where the mesh's model meets the wire: protobuf to records and back.

Services' `convert` modules and adapters call these; domain and application code never sees a
generated class. Both directions of a thing stand side by side in one module, so that a field added
to one is missed in the other by nobody.

    values     times and durations
    payloads   Payload, ObjectRef
    retries    RetryPolicy, Failure
    jobs       JobSpec -> NewJob, JobRecord -> Job
    events     JobEvent, Attempt
    dispatches Grab, Claimed -> Dispatch
    schedules  Schedule
"""
