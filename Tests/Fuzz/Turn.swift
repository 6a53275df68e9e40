import ApusCore
import ApusTraversal

private let start = MonotonicTime(nanoseconds: 1_000_000_000)
private let home = TransportAddress(v4: 0x0606_0606, port: 3478)
private let credentials = RelayCredentials(realm: "apus", current: [1, 2, 3])
private let policy = PeerPolicy(opened: [.private], own: [home])
private let names = ["ann", "bob"]
private let users = names.map { name in
    let (username, password) = credentials.issue(user: name, expiry: 4_000_000_000)
    return (username: username, key: StunKey(username: username, realm: "apus", password: password))
}
/// Datagrams, and from the fourth on connections.
private let flows = (0..<8 as Range<UInt16>).map { index in
    RelayFlow(
        plane: UInt8(index & 1), transport: index < 3 ? .udp : .tcp, local: home,
        remote: TransportAddress(v4: 0x0505_0505, port: 1000 + index), connection: index < 3 ? 0 : UInt64(index))
}
private let fresh = node(1)
/// Another life of the node, or another node: the same keys, and nothing of what was.
private let reborn = node(2)

private func node(_ number: UInt64) -> TurnServerStateMachine {
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
    configuration.connectionsMax = 2
    configuration.allocationsPerClusterUserMax = 3
    configuration.newPeerBurst = 6
    configuration.hasPeers = true
    configuration.claimsMax = 2
    configuration.node = number
    return TurnServerStateMachine(configuration, random: SeededRandom(seed: number), unixSeconds: 1, now: start)
}
/// The nonce of each flow, as its first challenge gave it.
private let nonces: [[UInt8]] = flows.map { flow in
    var machine = fresh
    var writer = StunWriter(StunMessageType(.request, .allocate), TransactionID(high: 0, low: 0))
    writer.add(requestedTransport: 17)
    for case .reply(_, let bytes) in machine.receive(writer.bytes, on: flow, at: start) {
        if let nonce = (try? StunMessage(bytes))?.value(of: .nonce) { return Array(nonce) }
    }
    preconditionFailure("an unauthenticated client gets no nonce")
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
/// permits no peer that it must refuse, keeps its bounds, never installs, removes or joins twice, gives nobody what is
/// another user's, here or of a node that died, and all ends with time.
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
        session.step(what, flow: Int(who & 3 | who >> 1 & 4), user: Int(who >> 2 & 1), bytes)
    }
    session.finish()
}

private struct TurnSession {
    var machine: TurnServerStateMachine
    var now = start
    var installed: [AllocationID] = []
    var openings: [RelayOpening] = []
    var connections: [UInt32] = []
    /// Every connection to a peer that there was, and those that were joined.
    var numbers: [UInt32] = []
    var joined: [UInt32] = []
    /// Whose request is under way, and whose each allocation is.
    var user = 0
    var owners: [AllocationID: String] = [:]
    /// What clients and other nodes know.
    var tickets: [[UInt8]] = []
    var mirrors: [AllocationMirror] = []
    var claims: [UInt32] = []
    var number: UInt64 = 1
    var port: UInt16 = 50_000

    mutating func step(_ what: UInt8, flow: Int, user: Int, _ bytes: [UInt8]) {
        self.user = user
        switch what & 15 {
        case 0, 1: run(machine.receive(request(bytes, flow, user), on: flows[flow], at: now))
        case 2: change(bytes, flow, user)
        case 3: run(machine.receive(bytes, on: flows[flow], at: now))
        case 4:
            now = now + .seconds(Int64(bytes.first ?? 1) * 10)
            while let next = machine.nextDeadline, next <= now { run(machine.tick(at: now)) }
        case 5: run(machine.streamClosed(flows[flow], at: now))
        case 6: answerConnections(bytes.first ?? 0)
        case 8: peerComes(bytes)
        case 9: peerIsUnreachable(bytes)
        case 10: machine.othersHave([names[user]: Int(bytes.first ?? 0)])
        case 11: anotherNode(bytes.first ?? 0)
        case 12: die()
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
            // Half of the values are such as clients have.
            if index & 0x80 == 0 {
                writer.add(type, value)
            } else if type == .xorPeerAddress, let peer = TransportAddress(bytes: value, port: 4000) {
                writer.add(type, xorAddress: peer)
            } else if type == .connectionID, !numbers.isEmpty {
                writer.add(type, number: numbers[Int(value.first ?? 0) % numbers.count])
            } else if type == .mobilityTicket, !tickets.isEmpty {
                writer.add(type, tickets[Int(value.first ?? 0) % tickets.count])
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

    /// A peer connects to a relayed address.
    private mutating func peerComes(_ bytes: [UInt8]) {
        guard let what = bytes.first, !installed.isEmpty,
            let peer = TransportAddress(bytes: Array(bytes.dropFirst()), port: 4000)
        else { return }
        number += 1
        let id = installed[Int(what) % installed.count]
        let arrived = machine.peerArrived(id, peer, transaction: TransactionID(high: 1, low: number), at: now)
        if let connection = arrived.connection {
            precondition(policy.refusal(ofHost: peer) == nil, "a peer must be refused")
            numbers.append(connection)
        }
        run(arrived.actions)
    }

    /// ICMP tells of a peer.
    private mutating func peerIsUnreachable(_ bytes: [UInt8]) {
        guard bytes.count > 3, !installed.isEmpty,
            let peer = TransportAddress(bytes: Array(bytes.dropFirst(3)), port: 4000)
        else { return }
        number += 1
        let id = installed[Int(bytes[0]) % installed.count]
        let icmp = StunICMP(type: bytes[1], code: bytes[2], errorData: UInt32(bytes.count) << 24)
        let told = machine.peerUnreachable(
            id, peer: peer, icmp: icmp, transaction: TransactionID(high: 2, low: number), at: now)
        for case .reply(_, let bytes) in told {
            precondition(policy.refusal(ofHost: peer) == nil, "a client hears of a peer that must be refused")
            precondition((try? StunMessage(bytes).icmp()) == icmp, "a client is told something else")
        }
        run(told)
    }

    /// Another node takes an allocation or a mirror over, tells of one of its own, or answers a claim.
    private mutating func anotherNode(_ what: UInt8) {
        let mirror = mirrors.isEmpty ? nil : mirrors[Int(what >> 3) % mirrors.count]
        switch (what & 3, mirror) {
        case (0, let mirror?):
            let (state, actions) = machine.surrender(mirror.ticket, username: users[user].username, at: now)
            precondition(state == nil || state?.username == users[user].username, "another user's is given up")
            run(actions)
        case (1, let mirror?): machine.adopt(mirror, replacing: nil, at: now)
        case (2, let mirror?): run(machine.movedAway(mirror.ticket, at: now))
        case (_, let mirror):
            guard let claim = claims.popLast() else { return }
            run(machine.claimed(claim, what & 4 == 0 ? mirror : nil, at: now))
        }
        precondition(machine.mirrorCount <= 2, "more mirrors are kept than may be")
    }

    /// The node dies; one with the same keys takes its place.
    private mutating func die() {
        machine = reborn
        (installed, openings, connections, numbers, joined, claims, owners) = ([], [], [], [], [], [], [:])
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
        case .closeFamily(let id, _): precondition(installed.contains(id), "an allocation that ended loses a family")
        case .connectPeer(_, let number, let peer):
            precondition(policy.refusal(of: peer) == nil, "a peer must be refused")
            connections.append(number)
            numbers.append(number)
        case .joinStreams(let flow, let id, let connection, _):
            precondition(flow.transport.isStream && !joined.contains(connection), "a connection is joined twice")
            precondition(owners[id] == names[user], "another user's connection is joined")
            joined.append(connection)
        case .moveFlow(let id, _), .transfer(let id, _, _):
            precondition(owners[id] == names[user], "another user's allocation is moved")
        case .began(let id, _, let user, _): owners[id] = user
        case .mirror(let state, _): mirrors.append(state)
        case .claim(let number, _, let username):
            precondition(username == users[user].username, "another user's ticket is claimed")
            claims.append(number)
        case .openRelay(let opening): openings.append(opening)
        case .reply(_, let bytes):
            guard let answer = try? StunMessage(bytes) else { preconditionFailure("an answer cannot be read") }
            if let ticket = answer.value(of: .mobilityTicket) { tickets.append(Array(ticket)) }
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
