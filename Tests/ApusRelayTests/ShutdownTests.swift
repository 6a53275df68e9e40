import ApusCore
import ApusRelay
import ApusTestKit
import ApusTraversal
import Logging
import Testing

@Suite("The log of a relay whose process ends (D8)", .serialized)
struct ShutdownTests {
    private func start(_ lines: LogLines) throws -> RelayUnderTest {
        try RelayUnderTest(log: lines.logger) {
            $0.challengeBurst = 10_000
            $0.allocationsPerUserMax = 2_000
            $0.allocationsPerClusterUserMax = 0
        }
    }

    @Test("Each allocation that lives has its line, with all that it carried to the last packet")
    func counted() throws {
        let lines = LogLines(from: .info)
        let relay = try start(lines)
        let client = relay.client(user: "ann")
        let peer = LoopbackSocket()
        _ = try client.allocate()
        let code = try client.code(.channelBind) {
            $0.add(channelNumber: 0x4001)
            $0.add(.xorPeerAddress, xorAddress: peer.address)
        }
        #expect(code == 0)
        for _ in 0..<3 {
            client.send(PlaneHarness.channelData(0x4001, [1, 2, 3, 4]))
            #expect(peer.receive() == [1, 2, 3, 4])
        }
        let other = relay.client(user: "bob")
        _ = try other.allocate()
        #expect(lines.with("An allocation ended").isEmpty)
        relay.control.stop()
        let ended = lines.with("An allocation ended")
        #expect(ended.map { $0.facts[LogKey.reason] } == ["shutdown", "shutdown"])
        #expect(Set(ended.compactMap { $0.facts[LogKey.user]?.description }) == ["ann", "bob"])
        let own = ended.first { $0.facts[LogKey.user]?.description == "ann" }
        #expect(own?.facts[LogKey.bytes] == "12 up, 0 down" && own?.facts[LogKey.count] == "3 up, 0 down")
        #expect(lines.with("More allocations ended with the process").isEmpty)
    }

    @Test("Beyond a thousand lines one line has the rest, and the end of the process stays short")
    func bounded() throws {
        let lines = LogLines(from: .info)
        let relay = try start(lines)
        let more = 40
        var clients: [TurnTestClient] = []
        for _ in 0..<(RelayServer.shutdownLinesMax + more) {
            let client = relay.client(user: "ann")
            _ = try client.allocate()
            clients.append(client)
        }
        let start = MonotonicTime.now()
        relay.control.stop()
        #expect(MonotonicTime.now() - start < RelayControl.windDownMax + .seconds(2))
        #expect(lines.with("An allocation ended").count == RelayServer.shutdownLinesMax)
        let rest = lines.with("More allocations ended with the process")
        #expect(rest.count == 1 && rest.first?.facts[LogKey.count] == "\(more)")
        #expect(clients.count == RelayServer.shutdownLinesMax + more)
    }
}
