import ApusCore
import ApusOutgoing
import Testing

@Suite("Messages on their way to a webhook (CALL-10)")
struct WebhookQueueTests {
    private typealias Action = WebhookQueueStateMachine.Action

    private let start = MonotonicTime(nanoseconds: 1_000_000_000)

    private func message(_ id: String, of owner: String = "", lasts: Duration = .seconds(30)) -> WebhookMessage {
        WebhookMessage(id: id, owner: owner.isEmpty ? id : owner, body: [1], expiresAt: start + lasts)
    }

    private func machine(
        _ configure: (inout WebhookQueueStateMachine.Limits) -> Void = { _ in }
    ) -> WebhookQueueStateMachine {
        var limits = WebhookQueueStateMachine.Limits()
        configure(&limits)
        return WebhookQueueStateMachine(limits)
    }

    @Test("A message is sent at once, once, and ends with the receiver's word")
    func sent() throws {
        var machine = machine()
        let (first, second) = (message("a"), message("b"))
        #expect(try machine.add(first, at: start) == [.send(first)])
        #expect(try machine.add(first, at: start) == [], "a repetition of what is being sent")
        #expect(machine.advance(at: start + .seconds(10)) == [])
        #expect(machine.answered("a", .accepted, at: start) == [.ended(first, .accepted)])
        #expect(machine.answered("a", .accepted, at: start) == [])
        #expect(try machine.add(second, at: start) == [.send(second)])
        #expect(machine.answered("b", .refused, at: start) == [.ended(second, .refused)])
        #expect(machine.count == 0)
    }

    @Test("A receiver that is away gets it again after 250 ms, twice as long each time, until the time is over")
    func repeated() throws {
        var machine = machine { $0.retryDelayMax = .seconds(1) }
        let message = message("a", lasts: .seconds(4))
        var attempts: [Duration] = [.zero]
        _ = try machine.add(message, at: start)
        _ = machine.answered("a", .unavailable, at: start)
        var end: (Duration, Action)?
        for step in 1..<500 {
            let now = start + .milliseconds(step * 10)
            for action in machine.advance(at: now) {
                if case .ended = action { end = (now - start, action) }
                guard action == .send(message) else { continue }
                attempts.append(now - start)
                _ = machine.answered("a", .unavailable, at: now)
            }
        }
        #expect(attempts == [0, 250, 750, 1750, 2750, 3750].map { .milliseconds($0) })
        #expect(end?.0 == .seconds(4) && end?.1 == .ended(message, .expired))
    }

    @Test("What is sent for the first time comes before what failed, and no more are sent at once than allowed")
    func fair() throws {
        var machine = machine { $0.sendingMax = 2 }
        _ = try machine.add(message("a"), at: start)
        _ = try machine.add(message("b"), at: start)
        #expect(try machine.add(message("c"), at: start) == [])
        _ = machine.answered("a", .unavailable, at: start)
        let later = start + .seconds(1)
        // `c` took the place of `a`; `d` comes before it.
        #expect(try machine.add(message("d"), at: later) == [])
        #expect(machine.answered("b", .accepted, at: later).last == .send(message("d")))
        #expect(machine.answered("c", .accepted, at: later).last == .send(message("a")))
    }

    @Test("An owner has an eighth of the queue, and another one's messages have room")
    func shares() throws {
        var machine = machine { $0.countMax = 16 }
        for id in ["a", "b"] { _ = try machine.add(message(id, of: "one"), at: start) }
        #expect(throws: ApusError(.overloaded)) { try machine.add(message("c", of: "one"), at: start) }
        _ = try machine.add(message("d", of: "other"), at: start)
    }

    @Test("A message that is cancelled is not sent again; one that is being sent ends with its attempt")
    func cancelled() throws {
        var machine = machine()
        _ = try machine.add(message("a"), at: start)
        #expect(try machine.cancel("a", at: start) == [])
        #expect(machine.answered("a", .unavailable, at: start) == [.ended(message("a"), .cancelled)])
        #expect(machine.count == 0)
        _ = try machine.add(message("b"), at: start)
        _ = machine.answered("b", .unavailable, at: start)
        #expect(try machine.cancel("b", at: start) == [.ended(message("b"), .cancelled)])
        #expect(try machine.cancel("b", at: start) == [])
    }

    @Test("A full queue refuses a further message (10007), and takes it when there is room")
    func bounded() throws {
        var machine = machine { $0.countMax = 2 }
        for id in ["a", "b"] { _ = try machine.add(message(id), at: start) }
        #expect(throws: ApusError(.overloaded)) { try machine.add(message("c"), at: start) }
        _ = machine.answered("a", .accepted, at: start)
        #expect(try machine.add(message("c"), at: start) == [.send(message("c"))])
    }

    @Test("A cancelled message is followed by another one if the receiver may have it, and after its attempt")
    func followed() throws {
        let (ring, cancel) = (message("a"), message("a.cancel", of: "a"))
        // Taken before, also by another node's hand.
        var machine = machine()
        #expect(try machine.cancel("a", then: cancel, at: start) == [.send(cancel)])
        // On its way: the answer decides.
        let answers: [(WebhookQueueStateMachine.Answer, [Action])] = [
            (.accepted, [.ended(ring, .accepted), .send(cancel)]),
            (.unavailable, [.ended(ring, .cancelled), .send(cancel)]), (.refused, [.ended(ring, .refused)]),
        ]
        for (answer, actions) in answers {
            machine = self.machine()
            _ = try machine.add(ring, at: start)
            #expect(try machine.cancel("a", then: cancel, at: start) == [])
            #expect(machine.answered("a", answer, at: start) == actions)
        }
        // Between two attempts: the answer to the first may have been lost.
        machine = self.machine()
        _ = try machine.add(ring, at: start)
        _ = machine.answered("a", .unavailable, at: start)
        #expect(try machine.cancel("a", then: cancel, at: start) == [.ended(ring, .cancelled), .send(cancel)])
        // Never sent: the app knows nothing of it.
        machine = self.machine { $0.sendingMax = 1 }
        _ = try machine.add(message("other"), at: start)
        _ = try machine.add(ring, at: start)
        #expect(try machine.cancel("a", then: cancel, at: start) == [.ended(ring, .cancelled)])
        #expect(machine.count == 1)
    }
}
