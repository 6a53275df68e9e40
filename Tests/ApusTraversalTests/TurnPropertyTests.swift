import ApusCore
import ApusTraversal
import Testing

/// What a plane would know from the machine's commands; refuses those that make no sense.
private struct PlaneModel {
    var flows: [AllocationID: RelayFlow] = [:]
    var permits: [AllocationID: Set<TransportAddress>] = [:]
    var channels: [AllocationID: [UInt16: TransportAddress]] = [:]
    var mirrors: Set<MobilityTicket> = []
    var openings: [UInt32] = []

    mutating func run(_ actions: [TurnAction], seed: UInt64) {
        for action in actions { run(action, "seed \(seed): \(action)") }
    }

    private mutating func run(_ action: TurnAction, _ what: Comment) {
        switch action {
        case .install(let id, let flow, _, _):
            #expect(flows[id] == nil && !flows.values.contains(flow), what)
            flows[id] = flow
        case .remove(let id):
            #expect(flows.removeValue(forKey: id) != nil, what)
            permits[id] = nil
            channels[id] = nil
        case .moveFlow(let id, let flow):
            #expect(flows[id] != nil && !flows.values.contains(flow), what)
            flows[id] = flow
        case .permit(let id, let host, _):
            #expect(flows[id] != nil && permits[id, default: []].insert(host).inserted, what)
        case .revoke(let id, let host): #expect(permits[id]?.remove(host) != nil, what)
        case .bindChannel(let id, let number, let peer):
            #expect(flows[id] != nil && channels[id]?[number] == nil, what)
            #expect(channels[id]?.values.contains(peer) != true, what)
            channels[id, default: [:]][number] = peer
        case .unbindChannel(let id, let number): #expect(channels[id]?.removeValue(forKey: number) != nil, what)
        case .mirror(let state, let old):
            if let old { mirrors.remove(old) }
            mirrors.insert(state.ticket)
        case .unmirror(let ticket): #expect(mirrors.remove(ticket) != nil, what)
        case .openRelay(let opening): openings.append(opening.request)
        case .sendToPeer(let id, let peer, _, _): #expect(permits[id]?.contains(peer.host) == true, what)
        default: break
        }
    }
}

@Suite("Any order of events (D8)")
struct TurnPropertyTests {
    private static let methods: [StunMethod] = [.allocate, .refresh, .createPermission, .channelBind, .refresh]

    @Test("The plane's tables and the machine agree after every step, and all ends with time", arguments: 0..<100)
    func sequences(seed: UInt64) throws {
        var random = SeededRandom(seed: seed)
        var driver = TurnDriver {
            $0.allocationsPerUserMax = 3
            $0.permissionsMax = 4
            $0.channelsMax = 3
            $0.nonceLifetime = .seconds(1_000_000)
            $0.challengesPerSecond = 1000
        }
        var plane = PlaneModel()
        var tickets: [[UInt8]] = []
        let users = ["ann", "bob"].map { TurnDriver.user($0, expiresIn: 1_000_000) }
        for _ in 0..<60 {
            let flow = TurnDriver.flow(UInt16.random(in: 1...5, using: &random))
            let user = users[Int.random(in: 0..<2, using: &random)]
            let actions: [TurnAction]
            switch Int.random(in: 0..<10, using: &random) {
            case 0: actions = driver.advance(.seconds(Int64.random(in: 1...400, using: &random)))
            case 1: actions = driver.machine.streamClosed(flow, at: driver.now)
            case 2, 3:
                guard let number = plane.openings.popLast() else { continue }
                driver.port &+= 1
                actions =
                    Bool.random(using: &random)
                    ? driver.machine.relayFailed(number, .noCapacity, at: driver.now)
                    : driver.machine.relayOpened(number, addresses: [driver.relayed(.v4)], at: driver.now)
            default:
                actions = try ask(&driver, flow, user, tickets, &random)
            }
            if let ticket = try driver.answer(actions)?.value(of: .mobilityTicket) { tickets.append(Array(ticket)) }
            plane.run(actions, seed: seed)
            #expect(driver.machine.allocationCount == plane.flows.count, "seed \(seed)")
        }
        for _ in 0..<5 { plane.run(driver.advance(.seconds(3601)), seed: seed) }
        #expect(plane.flows.isEmpty && plane.mirrors.isEmpty, "seed \(seed)")
        #expect(driver.machine.allocationCount == 0 && driver.machine.nextDeadline == nil, "seed \(seed)")
        #expect(driver.machine.allocationCount(of: "ann") + driver.machine.allocationCount(of: "bob") == 0)
    }

    private func ask(
        _ driver: inout TurnDriver, _ flow: RelayFlow, _ user: (username: String, password: String),
        _ tickets: [[UInt8]], _ random: inout SeededRandom
    ) throws -> [TurnAction] {
        let method = Self.methods[Int.random(in: 0..<Self.methods.count, using: &random)]
        let host = TransportAddress(
            v4: 0x0808_0800 + UInt32.random(in: 0..<6, using: &random), port: UInt16.random(in: 1...3, using: &random))
        let number = 0x4000 + UInt16.random(in: 0..<4, using: &random)
        let lifetime = UInt32.random(in: 0...3, using: &random) * 500
        let isMobile = Bool.random(using: &random)
        let ticket = tickets.randomElement(using: &random)
        return try driver.ask(method, on: flow, as: user) { writer in
            switch method {
            case .allocate:
                writer.add(requestedTransport: 17)
                writer.add(.lifetime, number: lifetime)
                if isMobile { writer.add(.mobilityTicket, []) }
            case .refresh:
                writer.add(.lifetime, number: lifetime)
                if isMobile, let ticket { writer.add(.mobilityTicket, ticket) }
            case .channelBind:
                writer.add(channelNumber: number)
                writer.add(.xorPeerAddress, xorAddress: host)
            default: writer.add(.xorPeerAddress, xorAddress: host)
            }
        }
    }
}
