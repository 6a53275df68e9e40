import ApusRelay
import ApusTraversal
import Testing

@Suite("Doors at ports that the system chooses")
struct DoorPortTests {
    @Test("Are no other server's, though the planes of one share it")
    func distinct() {
        let any = TransportAddress(v4: LoopbackSocket.host, port: 0)
        let doors = (0..<600).map { _ in
            RelaySocket.openDatagram(any, sharesPort: true, joins: false, bufferBytes: 0)
        }
        defer { for door in doors { RelaySocket.close(door) } }
        #expect(doors.allSatisfy { $0 >= 0 })
        let ports = doors.map { LoopbackSocket.local($0).port }
        #expect(Set(ports).count == doors.count)
        let shared = RelaySocket.openDatagram(
            any.withPort(ports[0]), sharesPort: true, joins: false, bufferBytes: 0)
        #expect(shared >= 0)
        RelaySocket.close(shared)
    }
}
