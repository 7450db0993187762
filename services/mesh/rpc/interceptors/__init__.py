"""What happens around every handler, one policy per module, put together once per method.

    admission    refuses the call that would be one too many
    deadline     carries the caller's deadline to whatever is called on its behalf
    tracing      a server span that continues the caller's trace; nothing when tracing is off
    validation   the contract's rules, on the request and on each message of a request stream
    metrics      how long, how it ended, how many are under way
    logging      each call at debug, each refusal of ours at warning
    writing      responses of a stream, and an end for peers that do not read them
    errors       whatever a handler raises becomes a rich status; defects become a correlation id
    chain        the order of all that, for the four kinds of calls

gRPC's own interceptors run, as coroutines, for every call and every layer. These wrap the handler
at registration instead, in one function; the policies are plain method calls from there.
"""
