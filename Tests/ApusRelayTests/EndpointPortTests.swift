import ApusRelay
import ApusTraversal
import Testing

@Suite("Endpoints at ports that the system chooses")
struct EndpointPortTests {
    @Test("Are no other server's, though the planes of one share it")
    func distinct() {
        let any = TransportAddress(v4: LoopbackSocket.host, port: 0)
        let endpoints = (0..<600).map { _ in
            RelaySocket.openDatagram(any, sharesPort: true, joins: false, bufferBytes: 0)
        }
        defer { for endpoint in endpoints { RelaySocket.close(endpoint) } }
        #expect(endpoints.allSatisfy { $0 >= 0 })
        let ports = endpoints.map { LoopbackSocket.local($0).port }
        #expect(Set(ports).count == endpoints.count)
        let shared = RelaySocket.openDatagram(
            any.withPort(ports[0]), sharesPort: true, joins: false, bufferBytes: 0)
        #expect(shared >= 0)
        RelaySocket.close(shared)
    }
}
