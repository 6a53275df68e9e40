import ApusCore
import ApusRelay
import ApusTraversal
import Testing

@Suite("Mirrors on their way to the standby (D8)")
struct MirrorFeedTests {
    private let first = NodeID(name: NodeName(unchecked: "n2"), incarnation: 1)
    private let second = NodeID(name: NodeName(unchecked: "n3"), incarnation: 1)
    private let now = MonotonicTime(nanoseconds: 1_000_000_000)

    private func ticket(_ number: UInt64) -> MobilityTicket { MobilityTicket(high: 0, low: number) }

    private func mirror(_ number: UInt64, channels: Int = 0) -> AllocationMirror {
        AllocationMirror(
            ticket: ticket(number), username: "9:u", relayed: [TransportAddress(v4: 1, port: 1)],
            remaining: .seconds(60), permissions: [],
            channels: (0..<channels).map {
                AllocationMirror.Channel(
                    number: UInt16(0x4000 + $0), peer: TransportAddress(v4: 2, port: UInt16($0 + 1)))
            })
    }

    private func sent(_ actions: [MirrorFeedStateMachine.Action]) -> (number: UInt64, changes: [MirrorChange])? {
        for case .send(let number, _, let changes) in actions { return (number, changes) }
        return nil
    }

    @Test("While nobody stands by nothing waits; whoever comes is told everything")
    func alone() {
        var feed = MirrorFeedStateMachine()
        #expect(feed.changed([.kept(mirror(1), replacing: nil)]).isEmpty)
        #expect(feed.pendingCount == 0)
        #expect(feed.standbyChanged(to: first) == [.tellMirrors])
        #expect(feed.standbyChanged(to: first).isEmpty)
        #expect(feed.standby == first)
    }

    @Test("Changes go at once; those that come while a batch is under way go together, the newest of each")
    func batches() throws {
        var feed = MirrorFeedStateMachine()
        _ = feed.standbyChanged(to: first)
        let one = try #require(sent(feed.changed([.kept(mirror(1), replacing: nil)])))
        #expect(one.changes == [.kept(mirror(1), replacing: nil)])
        #expect(feed.changed([.kept(mirror(2), replacing: nil)]).isEmpty)
        #expect(feed.changed([.kept(mirror(2, channels: 1), replacing: nil)]).isEmpty)
        #expect(feed.changed([.kept(mirror(3), replacing: ticket(1)), .ended(ticket(9))]).isEmpty)
        let two = try #require(sent(feed.answered(one.number, isTaken: true, at: now)))
        #expect(
            two.changes == [
                .kept(mirror(2, channels: 1), replacing: nil), .kept(mirror(3), replacing: nil), .ended(ticket(1)),
                .ended(ticket(9)),
            ])
        #expect(feed.answered(two.number, isTaken: true, at: now).isEmpty)
        #expect(sent(feed.changed([.ended(ticket(2))])) != nil)
    }

    @Test("A batch that failed begins with everything anew, after a wait")
    func failure() throws {
        var feed = MirrorFeedStateMachine()
        _ = feed.standbyChanged(to: first)
        let one = try #require(sent(feed.changed([.kept(mirror(1), replacing: nil)])))
        let next = now + .milliseconds(200)
        #expect(feed.answered(one.number, isTaken: false, at: now) == [.wait(until: next)])
        #expect(feed.changed([.kept(mirror(2), replacing: nil)]).isEmpty && feed.pendingCount == 0)
        #expect(feed.tick(at: now).isEmpty)
        #expect(feed.tick(at: next) == [.tellMirrors])
        #expect(sent(feed.changed([.kept(mirror(1), replacing: nil)])) != nil)
    }

    @Test("The answer of a standby of before says nothing to the one of now")
    func stray() throws {
        var feed = MirrorFeedStateMachine()
        _ = feed.standbyChanged(to: first)
        let old = try #require(sent(feed.changed([.kept(mirror(1), replacing: nil)])))
        #expect(feed.standbyChanged(to: second) == [.tellMirrors])
        let new = try #require(sent(feed.changed([.kept(mirror(1), replacing: nil)])))
        #expect(feed.answered(old.number, isTaken: false, at: now).isEmpty)
        #expect(feed.changed([.ended(ticket(1))]).isEmpty, "a batch is under way")
        #expect(sent(feed.answered(new.number, isTaken: true, at: now))?.changes == [.ended(ticket(1))])
        #expect(feed.standbyChanged(to: nil).isEmpty && feed.standby == nil)
    }

    @Test("A batch is bounded; what is too much to wait is told anew instead")
    func bounded() throws {
        var configuration = MirrorFeedStateMachine.Configuration()
        configuration.batchMax = 2
        configuration.pendingMax = 3
        var feed = MirrorFeedStateMachine(configuration: configuration)
        _ = feed.standbyChanged(to: first)
        let one = try #require(sent(feed.changed((1...5).map { .kept(mirror($0), replacing: nil) })))
        #expect(one.changes.count == 2 && feed.pendingCount == 3)
        #expect(feed.changed((10...20).map { .kept(mirror($0), replacing: nil) }) == [.tellMirrors])
        #expect(feed.pendingCount == 0)
    }
}

@Suite("The relays of a cluster (D8)")
struct RelayRosterTests {
    private func node(_ name: String, _ incarnation: UInt64 = 1) -> NodeID {
        NodeID(name: NodeName(unchecked: name), incarnation: incarnation)
    }

    private let endpoint = RelayEndpoint(transport: .udp, address: TransportAddress(v4: 7, port: 3478))

    private func report(_ usage: [(String, Int)] = [], isWhole: Bool = true, isDraining: Bool = false) -> RelayReport {
        RelayReport(
            endpoints: [endpoint], isDraining: isDraining,
            usage: usage.map { RelayUsage(user: $0.0, allocations: $0.1) },
            isWhole: isWhole)
    }

    private func roster(of local: String, _ names: [String]) -> RelayRoster {
        var roster = RelayRoster(local: node(local))
        roster.membersChanged(names.map { (node($0), true) })
        for name in names where name != local { roster.reported(report(), by: node(name)) }
        return roster
    }

    @Test("The standby is the next node by name, of those that live and relay")
    func ring() {
        let names = ["n10", "n1", "n3", "n2"]
        #expect(roster(of: "n1", names).standby == node("n2"))
        #expect(roster(of: "n3", names).standby == node("n10"))
        #expect(roster(of: "n10", names).standby == node("n1"))
        #expect(roster(of: "n1", ["n1"]).standby == nil)
        var roster = roster(of: "n1", names)
        roster.reported(report(isDraining: true), by: node("n2"))
        #expect(roster.standby == node("n3"))
        roster.membersChanged([(node("n1"), true), (node("n3"), false), (node("n10"), true)])
        #expect(roster.standby == node("n10"))
        #expect(roster.alternate == RelayAlternate(endpoints: [endpoint]))
    }

    @Test("A client is told of its own node's relay, then of the standby's, then of one more; none that leaves")
    func clientURLs() {
        func report(_ host: UInt32, advertised: HostPort? = nil, isDraining: Bool = false) -> RelayReport {
            let kinds: [RelayFlow.Transport] = [.udp, .tcp, .tls, .dtls]
            return RelayReport(
                endpoints: kinds.map {
                    RelayEndpoint(transport: $0, address: TransportAddress(v4: host, port: $0.isStream ? 5 : 4))
                }, isDraining: isDraining, advertised: advertised)
        }
        var roster = roster(of: "n1", ["n1", "n2", "n3", "n4"])
        for (number, name) in [(UInt32(2), "n2"), (3, "n3"), (4, "n4")] {
            roster.reported(report(number), by: node(name))
        }
        let own = [
            "turn:0.0.0.1:4?transport=udp", "turn:0.0.0.1:5?transport=tcp", "turns:0.0.0.1:5?transport=tcp",
        ]
        func others(_ number: Int) -> [String] { own.map { $0.replacing("0.0.0.1", with: "0.0.0.\(number)") } }
        #expect(roster.clientURLs(own: report(1)) == own + others(2) + others(3))
        roster.reported(report(2, isDraining: true), by: node("n2"))
        #expect(roster.clientURLs(own: report(1)) == own + others(3) + others(4))
        #expect(roster.clientURLs(own: report(1, isDraining: true)) == others(3) + others(4))
        roster.membersChanged([(node("n1"), true), (node("n3"), true)])
        roster.reported(report(3, advertised: HostPort(host: "relay.example", port: 443)), by: node("n3"))
        #expect(
            roster.clientURLs(own: RelayReport(endpoints: [])) == [
                "turn:relay.example:443?transport=udp", "turn:relay.example:443?transport=tcp",
                "turns:relay.example:5?transport=tcp",
            ])
    }

    @Test("What nodes tell of their addresses is known while they live, and each life is told the endpoints anew")
    func addresses() {
        var roster = roster(of: "n1", ["n1", "n2", "n3"])
        let address = TransportAddress(v4: 9, port: 0)
        let told = RelayReport(endpoints: [endpoint], addresses: [address, address])
        let isKnown = roster.reported(told, by: node("n2"))
        #expect(!isKnown)
        roster.reported(told, by: node("n3"))
        #expect(roster.addressesElsewhere == [address, endpoint.address.host])
        roster.membersChanged([(node("n1"), true), (node("n2", 2), true)])
        #expect(roster.addressesElsewhere.isEmpty)
        let isFirst = roster.reported(told, by: node("n2", 2))
        #expect(isFirst && roster.addressesElsewhere == [address, endpoint.address.host])
    }

    @Test("A node says where its allocations are; of one that does not, they may be anywhere")
    func relays() {
        var roster = roster(of: "n1", ["n1", "n2", "n3"])
        let (machine, relay) = (TransportAddress(v4: 9, port: 0), TransportAddress(v4: 10, port: 0))
        roster.reported(RelayReport(endpoints: [endpoint], addresses: [machine], relays: [relay]), by: node("n2"))
        #expect(roster.relaysElsewhere == [relay, endpoint.address.host])
        #expect(roster.addressesElsewhere == [machine, endpoint.address.host, relay])
        roster.reported(RelayReport(endpoints: [endpoint], addresses: [machine]), by: node("n3"))
        #expect(roster.relaysElsewhere == [relay, machine, endpoint.address.host])
    }

    @Test("Users are counted over the other nodes; what changed replaces, and a life that ended is forgotten")
    func counts() {
        var roster = roster(of: "n1", ["n1", "n2", "n3"])
        roster.reported(report([("ann", 2), ("bob", 1)]), by: node("n2"))
        roster.reported(report([("ann", 3)]), by: node("n3"))
        #expect(roster.countsElsewhere == ["ann": 5, "bob": 1])
        roster.reported(report([("bob", 0), ("cat", 4)], isWhole: false), by: node("n2"))
        #expect(roster.countsElsewhere == ["ann": 5, "cat": 4])
        roster.reported(report([("eve", 9)]), by: node("n4"))
        #expect(roster.countsElsewhere["eve"] == nil, "a node that is no member")
        roster.membersChanged([(node("n1"), true), (node("n2"), true), (node("n3", 2), true)])
        #expect(roster.countsElsewhere == ["ann": 2, "cat": 4])
    }
}
