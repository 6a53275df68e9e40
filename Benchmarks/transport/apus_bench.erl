%% The Erlang/OTP side of `scripts/bench transport`: gen_server:call with 64 bytes between two nodes
%% over mutual TLS. Prints one JSON object per measurement, as the Swift client does.
-module(apus_bench).
-behaviour(gen_server).
-export([server/0, client/1, caster/1]).
-export([init/1, handle_call/3, handle_cast/2]).

%% Serves until its input is closed.
server() ->
    {ok, _} = gen_server:start({local, ?MODULE}, ?MODULE, [], []),
    io:format("ready~n"),
    _ = io:get_line(""),
    halt(0).

%% How many casts came, how many of them out of order, and the last number.
init(_) -> {ok, {0, 0, none}}.
handle_call(report, _From, {Count, OutOfOrder, _} = State) -> {reply, {Count, OutOfOrder}, State};
handle_call(Message, _From, State) -> {reply, Message, State}.
handle_cast({count, Number}, {Count, OutOfOrder, Last}) when Last =:= none; Number =:= Last + 1 ->
    {noreply, {Count + 1, OutOfOrder, Number}};
handle_cast({count, Number}, {Count, OutOfOrder, _}) -> {noreply, {Count + 1, OutOfOrder + 1, Number}}.

%% Node, callers, milliseconds.
client([Node, Callers, Milliseconds]) ->
    connect(Node, 100),
    measure(Node, list_to_integer(atom_to_list(Callers)), 500),
    {Calls, Seconds, Times} =
        measure(Node, list_to_integer(atom_to_list(Callers)), list_to_integer(atom_to_list(Milliseconds))),
    Sorted = list_to_tuple(lists:sort(Times)),
    io:format("{\"calls\":~b,\"calls_per_s\":~f,\"p50_us\":~f,\"p99_us\":~f}~n",
        [Calls, Calls / Seconds, quantile(Sorted, 0.50), quantile(Sorted, 0.99)]),
    halt(0).

%% Node, how many casts. They come from one sender, each with its number.
caster([Node, Count]) ->
    connect(Node, 100),
    Server = {?MODULE, Node},
    {Before, BeforeOutOfOrder} = gen_server:call(Server, report),
    Start = erlang:monotonic_time(nanosecond),
    cast(Server, 0, list_to_integer(atom_to_list(Count))),
    {After, AfterOutOfOrder} = gen_server:call(Server, report, infinity),
    Seconds = (erlang:monotonic_time(nanosecond) - Start) / 1.0e9,
    io:format("{\"calls\":~b,\"calls_per_s\":~f,\"p50_us\":0.0,\"p99_us\":0.0,\"out_of_order\":~b}~n",
        [After - Before, (After - Before) / Seconds, AfterOutOfOrder - BeforeOutOfOrder]),
    halt(0).

cast(_, Count, Count) -> ok;
cast(Server, Number, Count) ->
    gen_server:cast(Server, {count, Number}),
    cast(Server, Number + 1, Count).

connect(Node, 0) -> io:format(standard_error, "no connection to ~p~n", [Node]), halt(1);
connect(Node, Tries) ->
    case net_kernel:connect_node(Node) of
        true -> ok;
        _ -> timer:sleep(100), connect(Node, Tries - 1)
    end.

measure(Node, Callers, Milliseconds) ->
    Server = {?MODULE, Node},
    Message = binary:copy(<<16#5a>>, 64),
    Over = atomics:new(1, []),
    Parent = self(),
    Mask = case Callers of 1 -> 0; _ -> 15 end,
    Start = erlang:monotonic_time(nanosecond),
    Pids = [spawn_link(fun() -> call(Parent, Server, Message, Over, Mask, 0, []) end) || _ <- lists:seq(1, Callers)],
    timer:sleep(Milliseconds),
    atomics:put(Over, 1, 1),
    Parts = [receive {Pid, Calls, Times} -> {Calls, Times} end || Pid <- Pids],
    Seconds = (erlang:monotonic_time(nanosecond) - Start) / 1.0e9,
    {lists:sum([C || {C, _} <- Parts]), Seconds, lists:append([T || {_, T} <- Parts])}.

call(Parent, Server, Message, Over, Mask, Calls, Times) ->
    case atomics:get(Over, 1) of
        1 -> Parent ! {self(), Calls, Times};
        0 ->
            case Calls band Mask of
                0 ->
                    Begin = erlang:monotonic_time(nanosecond),
                    Message = gen_server:call(Server, Message),
                    Time = erlang:monotonic_time(nanosecond) - Begin,
                    call(Parent, Server, Message, Over, Mask, Calls + 1, [Time | Times]);
                _ ->
                    Message = gen_server:call(Server, Message),
                    call(Parent, Server, Message, Over, Mask, Calls + 1, Times)
            end
    end.

quantile({}, _) -> 0.0;
quantile(Sorted, Share) ->
    element(min(tuple_size(Sorted), trunc(tuple_size(Sorted) * Share) + 1), Sorted) / 1000.
