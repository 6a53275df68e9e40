import ApusCore
import ApusRelay
import ApusTraversal
import Foundation
import Glibc
import Testing

@Suite("A relay that nobody uses", .serialized)
struct IdleRelayTests {
    /// The threads of relays in this process.
    private static func relayThreads() -> Set<String> {
        let tasks = (try? FileManager.default.contentsOfDirectory(atPath: "/proc/self/task")) ?? []
        return Set(
            tasks.filter {
                (try? String(contentsOfFile: "/proc/self/task/\($0)/comm", encoding: .utf8))?
                    .hasPrefix("relay-") == true
            })
    }

    /// How often threads went to sleep, and so were woken, since they began.
    private static func sleeps(_ threads: Set<String>) -> Int {
        threads.reduce(0) { sum, thread in
            let status = (try? String(contentsOfFile: "/proc/self/task/\(thread)/status", encoding: .utf8)) ?? ""
            let line = status.split(separator: "\n").first { $0.hasPrefix("voluntary_ctxt_switches:") }
            return sum + (line.flatMap { Int($0.split(separator: "\t").last ?? "") } ?? 0)
        }
    }

    @Test("It sleeps until somebody comes, serves him at once, and sleeps again when he has gone")
    func sleepsWhenIdle() throws {
        let others = Self.relayThreads()
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        // Threads give themselves their names.
        var threads: Set<String> = []
        for _ in 0..<100 where threads.count < 2 {
            pause(milliseconds: 10)
            threads = Self.relayThreads().subtracting(others)
        }
        try #require(threads.count == 2)
        for _ in 0..<2 {
            // What the last client left, such as the counters of its allocation, is told within three seconds.
            pause(milliseconds: 3_500)
            let before = Self.sleeps(threads)
            pause(milliseconds: 1_500)
            #expect(Self.sleeps(threads) - before <= 2)
            let client = relay.client()
            let peer = LoopbackSocket()
            let start = MonotonicTime.now()
            _ = try client.allocate()
            let code = try client.code(.channelBind) {
                $0.add(channelNumber: 0x4001)
                $0.add(.xorPeerAddress, xorAddress: peer.address)
            }
            #expect(code == 0)
            client.send(PlaneHarness.channelData(0x4001, [1]))
            #expect(peer.receive() == [1])
            #expect(MonotonicTime.now() - start < .seconds(2))
            #expect(try client.code(.refresh) { $0.add(.lifetime, number: UInt32(0)) } == 0)
            // A connection that comes after a sleep is as young as it is.
            let stream = relay.client(isStream: true)
            #expect(stream.isNextAnswered())
            pause(milliseconds: 300)
            #expect(stream.isNextAnswered())
        }
    }
}
