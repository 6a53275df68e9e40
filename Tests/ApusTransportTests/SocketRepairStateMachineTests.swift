import ApusCore
import ApusTestKit
import ApusTransport
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

private func at(_ milliseconds: Int) -> MonotonicTime {
    MonotonicTime(nanoseconds: UInt64(milliseconds) * 1_000_000)
}

@Suite("The heartbeat socket after errors (D4)")
struct SocketRepairStateMachineTests {
    @Test(
        "Errors that say nothing about the socket leave it open; others do not pass",
        arguments: [
            (EPERM, true), (ENOBUFS, true), (ENETUNREACH, true), (ENETDOWN, true), (EAGAIN, true), (EBADF, false),
            (ENOTSOCK, false), (EISDIR, false),
        ])
    func passing(number: Int32, passes: Bool) {
        #expect(SocketRepairStateMachine.isPassing(number) == passes)
    }

    @Test("Refused datagrams are reported once, after 100 ms, and the end of it too; the socket stays")
    func refused() {
        var machine = SocketRepairStateMachine()
        #expect(machine.sent(0, refused: 2, errno: EPERM, now: at(0)).isEmpty)
        #expect(machine.sent(0, refused: 2, errno: EPERM, now: at(50)).isEmpty)
        #expect(machine.sent(0, refused: 2, errno: EPERM, now: at(100)) == [.reportSilent(errno: EPERM)])
        #expect(machine.sent(0, refused: 2, errno: EPERM, now: at(150)).isEmpty)
        #expect(machine.sent(1, refused: 1, errno: EPERM, now: at(200)) == [.reportHeard])
        #expect(machine.sent(2, refused: 0, errno: 0, now: at(250)).isEmpty)
        #expect(machine.nextAttempt == nil)
    }

    @Test("A broken socket is opened again at once, then after 10 ms, doubled up to 200 ms, until it succeeds")
    func backoff() {
        var machine = SocketRepairStateMachine()
        #expect(machine.broke(errno: EBADF, now: at(0)) == [.reportSilent(errno: EBADF), .reopen])
        var now = 0
        var waits: [Int] = []
        for _ in 0..<7 {
            #expect(machine.openFailed(errno: EADDRINUSE, now: at(now)).isEmpty)
            guard let next = machine.nextAttempt else { break }
            let wait = Int((next - at(now)).milliseconds)
            waits.append(wait)
            #expect(machine.attempt(now: at(now + wait - 1)).isEmpty)
            now += wait
            #expect(machine.attempt(now: at(now)) == [.reopen])
        }
        #expect(waits == [10, 20, 40, 80, 160, 200, 200])
        #expect(machine.opened() == [.reportHeard])
        #expect(machine.nextAttempt == nil)
    }
}
