import ApusCore
import ApusRelay
import ApusTestKit
import ApusTraversal
import Logging
import Testing

@Suite("A relay without descriptors")
struct ExhaustionTests {
    @Test("Allocations beyond their share of descriptors get 508, the log says why, and an end makes room")
    func share() throws {
        let lines = LogLines(from: .info)
        let relay = try RelayUnderTest(log: lines.logger, socketsMax: 3)
        defer { relay.control.stop() }
        // The clients stay open: a client at the port of one that is closed has that one's allocation, and gets 437.
        let clients = (0..<3).map { _ in relay.client() }
        for client in clients { _ = try client.allocate() }
        for _ in 0..<30 {
            let code = try relay.client().code(.allocate) { $0.add(requestedTransport: 17) }
            #expect(code == 508)
        }
        #expect(lines.with("No port is free for an allocation").isEmpty)
        let said = lines.with("An allocation is refused: there is no descriptor or memory for its socket")
        #expect((1...10).contains(said.count))
        #expect(said.first?.facts[LogKey.error]?.description.contains("3 descriptors") == true)
        #expect(try clients[0].code(.refresh) { $0.add(.lifetime, number: UInt32(0)) } == 0)
        _ = try relay.client().allocate()
        withExtendedLifetime(clients) {}
    }

    @Test("A port in use is told from a descriptor that is missing")
    func errors() throws {
        let any = TransportAddress(v4: LoopbackSocket.host, port: 0)
        let taken = try RelaySocket.open(any, bufferBytes: 4_096)
        defer { RelaySocket.close(taken.socket) }
        #expect(throws: ApusError(.addressInUse)) { try RelaySocket.open(taken.address, bufferBytes: 4_096) }
    }
}
