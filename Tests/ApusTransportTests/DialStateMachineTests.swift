import ApusCore
import ApusTransport
import Testing

@Suite("Dialling one peer (D3, D4)")
struct DialStateMachineTests {
    private func machine() -> DialStateMachine {
        DialStateMachine(backoffMin: .milliseconds(20), backoffMax: .seconds(1))
    }

    @Test("Waits between failed dials double from 20 ms to 1 s, half of each at random")
    func backoff() {
        var machine = machine()
        #expect(machine.started() == [.connect])
        for expected in [20, 40, 80, 160, 320, 640, 1000, 1000] {
            #expect(machine.dialFailed(refused: false, jitter: 0) == [.retry(after: .milliseconds(expected) * 0.5)])
            #expect(machine.waited() == [.connect])
        }
    }

    @Test("A lost link is dialled at once, and the refusal of its address is told at once")
    func lossAndRefusal() {
        var machine = machine()
        _ = machine.started()
        #expect(machine.established(at: .zero) == [.reportUp])
        #expect(machine.lost(at: .zero + .seconds(5), jitter: 0) == [.reportLost, .connect])
        #expect(machine.dialFailed(refused: true, jitter: 1) == [.reportRefused, .retry(after: .milliseconds(20))])
    }

    @Test("A link that is lost right after it came up is not dialled in ping-pong")
    func flapping() {
        var machine = machine()
        _ = machine.started()
        var waits: [DialStateMachine.Action] = []
        for _ in 0..<3 {
            _ = machine.established(at: .zero)
            waits += machine.lost(at: .zero + .milliseconds(1), jitter: 0)
            _ = machine.waited()
        }
        #expect(
            waits == [
                .reportLost, .retry(after: .milliseconds(10)), .reportLost, .retry(after: .milliseconds(20)),
                .reportLost,
                .retry(after: .milliseconds(40)),
            ])
    }

    @Test("After a stop nothing is reported, and a handshake that finishes is closed")
    func stop() {
        var machine = machine()
        _ = machine.started()
        #expect(machine.stopped() == [.close])
        #expect(machine.established(at: .zero) == [.close])
        #expect(machine.dialFailed(refused: true, jitter: 0) == [])
        #expect(machine.waited() == [])
    }
}
