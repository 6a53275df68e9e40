import ApusCore
import ApusGateway
import Testing

@Suite("Which unauthenticated connection is closed (D13)")
struct HandshakeOrderTests {
    private static func victim(_ entries: [(hasSent: Bool, age: Double)]) -> Int {
        let now = MonotonicTime(nanoseconds: 100_000_000_000)
        return HandshakeOrder.victim(entries.count, at: now) { index in
            let age = Duration.milliseconds(Int64(entries[index].age * 1000))
            return .init(
                hasSent: entries[index].hasSent,
                since: MonotonicTime(nanoseconds: now.nanoseconds - UInt64(age.milliseconds * 1_000_000)))
        }
    }

    @Test("One that has sent nothing is closed first, the oldest of them")
    func silent() {
        #expect(Self.victim([(true, 9), (false, 2), (false, 1), (false, 0)]) == 1)
        #expect(Self.victim([(false, 2), (true, 1), (false, 0)]) == 0)
    }

    @Test("Handshakes in progress are completed: the new connection is closed, until the oldest had its time")
    func inProgress() {
        #expect(Self.victim([(true, 2), (true, 1), (false, 0)]) == 2)
        #expect(Self.victim([(true, 2), (true, 1), (true, 0)]) == 2)
        #expect(Self.victim([(true, 3), (true, 1), (true, 0)]) == 0)
        #expect(Self.victim([(true, 0)]) == 0)
    }
}
