import ApusCore
import ApusGateway
import Testing

@Suite("How long the clients of a dead node spread their connects (decision 44)")
struct ReconnectSpreadTests {
    private let configuration = GatewayConfiguration(
        bind: HostPort(host: "127.0.0.1", port: 0), advertised: HostPort(host: "127.0.0.1", port: 0),
        certificateFile: "", keyFile: "")

    @Test("As long as the other nodes take to admit them, within its bounds")
    func bounds() {
        #expect(configuration.reconnectSpread(sessions: 0) == .zero)
        // Under 100 ms it is not worth the wait.
        #expect(configuration.reconnectSpread(sessions: 149) == .zero)
        #expect(configuration.reconnectSpread(sessions: 150) == .milliseconds(100))
        #expect(configuration.reconnectSpread(sessions: 6_000) == .seconds(4))
        #expect(configuration.reconnectSpread(sessions: 1_000_000) == .seconds(15))
        var without = configuration
        without.reconnectRate = 0
        #expect(without.reconnectSpread(sessions: 15_000) == .zero)
    }
}
