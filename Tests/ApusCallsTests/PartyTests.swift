import ApusCalls
import ApusCore
import SwiftProtobuf
import Testing

@Suite("The call of a party (CALL-5)")
struct PartyTests {
    private static let alice = CallParty.account(AccountID(unchecked: "alice"))
    private static let bob = CallParty.account(AccountID(unchecked: "bob"))

    private static func claim(
        _ call: String, isCaller: Bool = false, peer: CallParty? = nil, until: Int64 = 60_000
    ) -> CallPartyClaim {
        .with {
            ($0.call, $0.isCaller, $0.untilMs) = (call, isCaller, until)
            if let peer { $0.peer = peer }
        }
    }

    @Test("CALL-5: a party is on one call at a time, and free after it")
    func oneCall() throws {
        var party = try PartyStateMachine()
        #expect(!party.isOnCalling(at: 0) && party.nextMs == nil)
        #expect(try party.claim(Self.claim("x"), at: 0) == .granted)
        #expect(try party.claim(Self.claim("x"), at: 1) == .granted)
        #expect(try party.claim(Self.claim("y"), at: 1) == .refused && party.isOnCalling(at: 1))
        party.release(CallID(unchecked: "y"), at: 2)
        #expect(party.isOnCalling(at: 2))
        party.release(CallID(unchecked: "x"), at: 2)
        #expect(!party.isOnCalling(at: 2))
        #expect(try party.claim(Self.claim("x"), at: 3) == .refused, "the claim came late")
        #expect(try party.claim(Self.claim("z"), at: 3) == .granted)
    }

    @Test("CALL-5: a claim that nobody renews ends by itself, and no claim is longer than the configured time")
    func expiry() throws {
        var party = try PartyStateMachine()
        #expect(try party.claim(Self.claim("x", until: .max), at: 1000) == .granted)
        #expect(party.nextMs == 61_000 && party.isOnCalling(at: 60_999) && !party.isOnCalling(at: 61_000))
        #expect(try party.claim(Self.claim("y", until: 121_000), at: 61_000) == .granted)
        #expect(try party.claim(Self.claim("x", until: 121_000), at: 61_000) == .refused)
        party.advance(at: 121_000)
        #expect(party.state.claim == CallPartyClaim())
    }

    @Test("CALL-5: a release that overtakes its claim is kept in mind, and a repeated claim does not shorten a renewal")
    func overtaking() throws {
        var party = try PartyStateMachine()
        party.release(CallID(unchecked: "x"), at: 0)
        #expect(try party.claim(Self.claim("x"), at: 0) == .refused)
        #expect(try party.claim(Self.claim("y", until: 50_000), at: 0) == .granted)
        #expect(try party.claim(Self.claim("y", until: 20_000), at: 0) == .granted)
        #expect(party.nextMs == 50_000)
        expectRefused(.malformed) { _ = try party.claim(Self.claim(""), at: 0) }
    }

    @Test("A client that returns is expected by the call of its party, and by one that has released it lately")
    func returning() throws {
        var party = try PartyStateMachine()
        #expect(party.recentCalls(at: 0).isEmpty)
        #expect(try party.claim(Self.claim("x"), at: 0) == .granted)
        #expect(party.recentCalls(at: 1) == [CallID(unchecked: "x")])
        party.release(CallID(unchecked: "x"), at: 1000)
        #expect(party.recentCalls(at: 120_999) == [CallID(unchecked: "x")])
        #expect(try party.claim(Self.claim("y", until: 200_000), at: 100_000) == .granted)
        #expect(party.recentCalls(at: 120_999) == [CallID(unchecked: "y"), CallID(unchecked: "x")])
        #expect(party.recentCalls(at: 121_000) == [CallID(unchecked: "y")])
    }

    @Test("CALL-8: of two parties that call each other the call with the lesser id goes on", arguments: [true, false])
    func glare(isFirst: Bool) throws {
        let (own, other) = isFirst ? ("a", "b") : ("b", "a")
        var party = try PartyStateMachine()
        #expect(try party.claim(Self.claim(own, isCaller: true, peer: Self.bob), at: 0) == .granted)
        let answer = try party.claim(Self.claim(other, peer: Self.bob), at: 0)
        #expect(answer == (isFirst ? .crossed : .grantedInsteadOf(CallID(unchecked: own))))
        #expect(party.state.claim.call == "a")
    }

    @Test("CALL-8: a call of somebody else, or with further parties, does not take over a party")
    func noGlare() throws {
        for claim in [
            Self.claim("a", peer: Self.alice), Self.claim("a"), Self.claim("a", isCaller: true, peer: Self.bob),
        ] {
            var party = try PartyStateMachine()
            #expect(try party.claim(Self.claim("b", isCaller: true, peer: Self.bob), at: 0) == .granted)
            #expect(try party.claim(claim, at: 0) == .refused)
        }
        var party = try PartyStateMachine()
        #expect(try party.claim(Self.claim("b", peer: Self.bob), at: 0) == .granted)
        #expect(
            try party.claim(Self.claim("a", peer: Self.bob), at: 0) == .refused, "the party has not placed the call")
    }

    @Test("A call of an own device takes the party over from one of another account's device, until that is answered")
    func guests() throws {
        func claim(_ call: String, guest: Bool, answered: Bool = false, isCaller: Bool = false) -> CallPartyClaim {
            var claim = Self.claim(call, isCaller: isCaller)
            (claim.guest, claim.answered) = (guest, answered)
            return claim
        }
        var party = try PartyStateMachine()
        #expect(try party.claim(claim("guest", guest: true), at: 0) == .granted)
        #expect(try party.claim(claim("guest-2", guest: true), at: 0) == .refused)
        #expect(try party.claim(claim("app", guest: false, isCaller: true), at: 0) == .refused, "it is being called")
        #expect(
            try party.claim(claim("bell", guest: false), at: 0) == .grantedInsteadOf(CallID(unchecked: "guest")))
        for other in ["guest", "guest-2"] { #expect(try party.claim(claim(other, guest: true), at: 1) == .refused) }
        #expect(try party.claim(claim("bell-2", guest: false), at: 1) == .refused, "own devices wait for each other")
        party.release(CallID(unchecked: "guest"), at: 2)
        #expect(party.state.claim.call == "bell", "the end of the other call does not free the party")

        var talking = try PartyStateMachine()
        #expect(try talking.claim(claim("guest", guest: true), at: 0) == .granted)
        #expect(try talking.claim(claim("guest", guest: true, answered: true), at: 1) == .granted)
        #expect(try talking.claim(claim("bell", guest: false), at: 2) == .refused)
    }

    @Test(
        "A call of another account's device says so when it claims its party, and when it is answered",
        arguments: [true, false])
    func answeredGuests(isOfGuest: Bool) throws {
        var target = CallDriver.app(1)
        target.isOfGuest = isOfGuest
        func claims(_ call: CallDriver) -> [CallPartyClaim] {
            call.actions.compactMap { action in
                if case .claim(let party, let claim) = action, party == target.party { claim } else { nil }
            }
        }
        var call = try CallDriver(placing: CallDriver.start(to: [target]))
        call.happen(.partyClaimed(CallDriver.caller.party))
        #expect(claims(call).map(\.guest) == [isOfGuest] && claims(call).allSatisfy { !$0.answered })
        call.happen(.partyClaimed(target.party))
        try call.send(.accepted, 1)
        #expect(claims(call).map(\.answered) == (isOfGuest ? [true] : []), "an own device's call needs no other claim")
    }

    @Test("CALL-8: two calls that cross leave one of them, whatever the order in which their claims arrive")
    func crossing() throws {
        let (alice, bob) = (CallDriver.caller, CallSender(Self.bob, AccessID(unchecked: "bob-1")))
        for order in 0..<64 {
            var random = SeededRandom(seed: UInt64(order))
            var calls = [CallStateMachine(), CallStateMachine()]
            var parties = [try PartyStateMachine(), try PartyStateMachine()]
            var actions: [(call: Int, action: CallAction)] = []
            for (index, start) in [
                CallStart(
                    CallID(unchecked: "x"), .oneToOne, from: alice, to: [CallTarget(bob.party, bob.endpoint)],
                    extra: try CallExtra(), answering: order % 2 == 0 ? nil : CallDriver.machine(of: bob.party)),
                CallStart(
                    CallID(unchecked: "y"), .oneToOne, from: bob, to: [CallTarget(alice.party, alice.endpoint)],
                    extra: try CallExtra(), answering: order % 2 == 0 ? nil : CallDriver.machine(of: alice.party)),
            ].enumerated() {
                var caused: [CallAction] = []
                _ = try calls[index].start(start, at: 0, &caused)
                actions += caused.map { (index, $0) }
            }
            while !actions.isEmpty {
                let (call, action) = actions.remove(at: Int(random.next() % UInt64(actions.count)))
                var events: [(call: Int, event: CallClusterEvent)] = []
                switch action {
                case .claim(let party, let claim):
                    switch try parties[party == alice.party ? 0 : 1].claim(claim, at: 0) {
                    case .granted: events = [(call, .partyClaimed(party))]
                    case .grantedInsteadOf: events = [(1 - call, .partyRefused(party)), (call, .partyClaimed(party))]
                    case .refused: events = [(call, .partyRefused(party))]
                    case .crossed: events = [(call, .partyCrossed(party))]
                    }
                case .release(let party):
                    parties[party == alice.party ? 0 : 1].release(CallID(unchecked: call == 0 ? "x" : "y"), at: 0)
                    events = [(call, .partyReleased(party))]
                default: break
                }
                for (call, event) in events {
                    var caused: [CallAction] = []
                    calls[call].handle(event, at: 0, &caused)
                    actions += caused.map { (call, $0) }
                }
            }
            let phases = calls.map(\.state.phase)
            #expect(phases.count { $0 == .calling } == 1 && phases.count { $0 == .ended } == 1, "order \(order)")
            let loser = phases[0] == .ended ? calls[0] : calls[1]
            #expect([-2511, -2520].contains(loser.view(0).end?.number ?? 0))
        }
    }

    @Test("A party with 32 connections refuses one more client, and replaces an earlier connection of one that it has")
    func connections() throws {
        var party = CallPartyEntity()
        for number in 0..<CallPartyEntity.listenersMax {
            let listener = CallListener.with {
                ($0.node, $0.number, $0.endpoint) = ("a", UInt64(number), "app-\(number)")
            }
            try party.makeRoom(for: listener)
            party.listeners.append(listener)
        }
        let before = party
        expectRefused(.overloaded) { try party.makeRoom(for: .with { $0.endpoint = "another" }) }
        #expect(party == before)
        try party.makeRoom(for: .with { $0.endpoint = "app-5" })
        #expect(party.listeners.count == CallPartyEntity.listenersMax - 1)
        #expect(!party.listeners.contains { $0.endpoint == "app-5" })
    }
}
