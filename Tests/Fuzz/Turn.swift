import ApusCore
import ApusTraversal

private let start = MonotonicTime(nanoseconds: 1_000_000_000)
private let home = TransportAddress(v4: 0x0606_0606, port: 3478)
private let credentials = RelayCredentials(realm: "apus", current: [1, 2, 3])
private let policy = PeerPolicy(opened: [.private], own: [home])
private let users = ["ann", "bob"].map { name in
    let (username, password) = credentials.issue(user: name, expiry: 4_000_000_000)
    return (username: username, key: StunKey(username: username, realm: "apus", password: password))
}
private let flows = (0..<4 as Range<UInt16>).map { index in
    RelayFlow(
        plane: UInt8(index & 1), transport: index == 3 ? .tcp : .udp, local: home,
        remote: TransportAddress(v4: 0x0505_0505, port: 1000 + index), connection: index == 3 ? 1 : 0)
}
private let fresh: TurnServerStateMachine = {
    var configuration = TurnServerConfiguration(credentials: credentials, nonceKey: [4, 5, 6])
    configuration.nonceLifetime = .seconds(1_000_000)
    configuration.families = [.v4, .v6]
    configuration.peers = policy
    configuration.allocationsPerUserMax = 2
    configuration.permissionsMax = 4
    configuration.channelsMax = 4
    configuration.reservationsMax = 2
    configuration.mirrorsMax = 2
    configuration.sourceRows = 8
    configuration.isTCPAllowed = true
    return TurnServerStateMachine(configuration, random: SeededRandom(seed: 1), unixSeconds: 1, now: start)
}()
/// The nonce of each flow, as its first challenge gave it.
private let nonces: [[UInt8]] = flows.map { flow in
    var machine = fresh
    var writer = StunWriter(StunMessageType(.request, .allocate), TransactionID(high: 0, low: 0))
    writer.add(requestedTransport: 17)
    for case .reply(_, let bytes) in machine.receive(writer.bytes, on: flow, at: start) {
        if let nonce = (try? StunMessage(bytes))?.value(of: .nonce) { return Array(nonce) }
    }
    preconditionFailure("a stranger gets no nonce")
}
private let methods: [StunMethod] = [
    .allocate, .refresh, .createPermission, .channelBind, .connect, .connectionBind, .binding, .send,
]
private let attributes: [StunAttribute] = [
    .requestedTransport, .lifetime, .xorPeerAddress, .channelNumber, .data, .mobilityTicket, .evenPort,
    .reservationToken, .requestedAddressFamily, .additionalAddressFamily, .dontFragment, .connectionID,
    .passwordAlgorithm, .passwordAlgorithms, .userhash, .username, .realm, .nonce, .messageIntegrity, .fingerprint,
]

/// D8: whatever clients with a credential say in whatever order, and whatever is changed in it on its way, the server
/// permits no peer that it must refuse, keeps its bounds, never installs or removes twice, and all ends with time.
///
/// The input is a list of steps: what, with which flow and user, a length, and so many bytes.
func fuzzTurn(_ input: [UInt8]) {
    var session = TurnSession(machine: fresh)
    var rest = input[...]
    for _ in 0..<12 {
        guard rest.count >= 3, let what = rest.popFirst(), let who = rest.popFirst(), let count = rest.popFirst()
        else { break }
        let bytes = Array(rest.prefix(Int(count)))
        rest = rest.dropFirst(Int(count))
        session.step(what, flow: Int(who & 3), user: Int(who >> 2 & 1), bytes)
    }
    session.finish()
}

private struct TurnSession {
    var machine: TurnServerStateMachine
    var now = start
    var installed: [AllocationID] = []
    var openings: [RelayOpening] = []
    var connections: [UInt32] = []
    var number: UInt64 = 1
    var port: UInt16 = 50_000

    mutating func step(_ what: UInt8, flow: Int, user: Int, _ bytes: [UInt8]) {
        switch what % 8 {
        case 0, 1: run(machine.receive(request(bytes, flow, user), on: flows[flow], at: now))
        case 2: change(bytes, flow, user)
        case 3: run(machine.receive(bytes, on: flows[flow], at: now))
        case 4:
            now = now + .seconds(Int64(bytes.first ?? 1) * 10)
            while let next = machine.nextDeadline, next <= now { run(machine.tick(at: now)) }
        case 5: run(machine.streamClosed(flows[flow], at: now))
        case 6: answerConnections(bytes.first ?? 0)
        default: lose(bytes.first ?? 0)
        }
        open(what)
    }

    /// A request that is proven, with the attributes that the bytes describe: an index, a length and a value each.
    private mutating func request(_ bytes: [UInt8], _ flow: Int, _ user: Int) -> [UInt8] {
        number += 1
        let method = methods[Int(bytes.first ?? 0) % methods.count]
        let kind: StunClass = method == .send ? .indication : .request
        let transaction = TransactionID(high: 0, low: number)
        var writer = StunWriter(StunMessageType(kind, method), transaction)
        var rest = bytes.dropFirst()
        while rest.count >= 2, let index = rest.popFirst(), let count = rest.popFirst() {
            let value = Array(rest.prefix(Int(count & 31)))
            rest = rest.dropFirst(value.count)
            let type = attributes[Int(index) % attributes.count]
            // Half of the peers are such as clients have.
            if type == .xorPeerAddress, index & 0x80 != 0, let peer = TransportAddress(bytes: value, port: 4000) {
                writer.add(type, xorAddress: peer)
            } else {
                writer.add(type, value)
            }
        }
        guard kind == .request else { return writer.bytes }
        writer.add(.username, text: users[user].username)
        writer.add(.realm, text: "apus")
        writer.add(.nonce, nonces[flow])
        writer.addIntegrity(.sha1, key: users[user].key)
        return writer.bytes
    }

    /// A proven request of which a byte was changed under way: it does nothing but for the bits of its type that
    /// make something else of it, and is not answered as the client that sent it would be.
    private mutating func change(_ bytes: [UInt8], _ flow: Int, _ user: Int) {
        guard bytes.count > 2 else { return }
        var message = request(Array(bytes.dropFirst(2)), flow, user)
        guard message[1] & 0x10 == 0, bytes[1] != 0 else { return }
        let position = Int(bytes[0]) % message.count
        message[position] ^= bytes[1]
        let before = (machine.allocationCount, openings.count)
        let actions = machine.receive(message, on: flows[flow], at: now)
        for action in actions {
            switch action {
            case .reply(_, let answer):
                guard let answer = try? StunMessage(answer) else { preconditionFailure("an answer cannot be read") }
                precondition(
                    answer.kind == .error || answer.method == .binding, "a request that was changed is served")
            case .openRelay, .install, .remove, .permit, .bindChannel, .moveFlow, .transfer:
                preconditionFailure("a request that was changed is served")
            default: break
            }
        }
        precondition(machine.allocationCount == before.0, "a request that was changed is served")
    }

    private mutating func open(_ what: UInt8) {
        while let opening = openings.popLast() {
            if what & 0x80 != 0, what & 0x40 != 0 {
                run(machine.relayFailed(opening.request, .noCapacity, at: now))
                continue
            }
            port = port > 65_000 ? 50_000 : port + 2
            let addresses = opening.families.map { family in
                family == .v4
                    ? TransportAddress(v4: 0x0606_0606, port: port)
                    : TransportAddress(v6High: 0x2606_4700_0000_0000, low: 6, port: port)
            }
            run(machine.relayOpened(opening.request, addresses: addresses, at: now))
        }
    }

    private mutating func answerConnections(_ what: UInt8) {
        guard let connection = connections.popLast() else { return }
        if what & 1 == 0 {
            connections.insert(connection, at: 0)
            run(machine.peerConnected(connection, at: now))
        } else {
            run(machine.peerClosed(connection, at: now))
        }
    }

    /// The node ends an allocation, or its last counters come.
    private mutating func lose(_ what: UInt8) {
        guard !installed.isEmpty else { return }
        let id = installed[Int(what) % installed.count]
        run(what & 0x80 == 0 ? machine.close(id, at: now) : machine.counted(id, RelayCounters(), isFinal: true))
    }

    private mutating func run(_ actions: [TurnAction]) {
        for action in actions { run(action) }
        precondition(machine.allocationCount == installed.count, "the machine and its commands differ")
        precondition(installed.count <= 4, "users have more allocations than they may")
    }

    private mutating func run(_ action: TurnAction) {
        switch action {
        case .install(let id, _, _, _):
            precondition(!installed.contains(id), "an allocation is installed twice")
            installed.append(id)
        case .remove(let id):
            guard let index = installed.firstIndex(of: id) else {
                preconditionFailure("an allocation is removed twice")
            }
            installed.remove(at: index)
        case .permit(let id, let host, let ports):
            precondition(installed.contains(id) && policy.refusal(ofHost: host) == nil, "a peer must be refused")
            precondition(host.host != home.host || ports == 49152...65535, "the node's own ports are open")
        case .bindChannel(let id, let channel, let peer):
            precondition(installed.contains(id) && policy.refusal(of: peer) == nil, "a peer must be refused")
            precondition(ChannelDataHeader.channelNumbers.contains(channel), "a channel has a wrong number")
        case .sendToPeer(let id, let peer, _, _):
            precondition(installed.contains(id) && policy.refusal(of: peer) == nil, "a peer must be refused")
        case .connectPeer(_, let number, let peer):
            precondition(policy.refusal(of: peer) == nil, "a peer must be refused")
            connections.append(number)
        case .openRelay(let opening): openings.append(opening)
        case .reply(_, let bytes):
            precondition((try? StunMessage(bytes)) != nil, "an answer cannot be read")
        default: break
        }
    }

    /// After the longest lifetime nothing is left.
    mutating func finish() {
        for _ in 0..<4 {
            now = now + .seconds(3700)
            while let next = machine.nextDeadline, next <= now { run(machine.tick(at: now)) }
        }
        precondition(installed.isEmpty && machine.nextDeadline == nil, "something never ends")
        precondition(machine.allocationCount(of: "ann") + machine.allocationCount(of: "bob") == 0, "a quota stays")
    }
}
