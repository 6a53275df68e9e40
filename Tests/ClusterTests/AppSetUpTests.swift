import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import Foundation
import Logging
import Synchronization
import Testing

@Suite("The SDK is set up once (IV-A4)", .serialized, .timeLimit(.minutes(2)))
struct AppSetUpTests {
    /// What the delegate has received.
    private final class Delegate: ApusAppDelegate {
        private let received = Mutex<(states: [LinkState], lines: [String])>(([], []))

        func didUpdate(_ linkStatus: LinkState) { received.withLock { $0.states.append(linkStatus) } }
        func didOutputPrettyLogMessage(_ message: String) { received.withLock { $0.lines.append(message) } }

        var states: [LinkState] { received.withLock { $0.states } }
        var lines: [String] { received.withLock { $0.lines } }
        func clear() { received.withLock { $0 = ([], []) } }
    }

    @Test(
        "Options, a delegate and a log level; a bad token, and a kick are reported, and can be asked for (IV-A4, IV-A5)"
    )
    func setUp() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_590)
        defer { cluster.down() }
        let (app, delegate, phone) = (ApusApp(), Delegate(), AccessID(unchecked: "phone"))
        let token = try cluster.token("--role", "app", "--access", "phone")
        #expect(throws: ApusError(.unavailable)) { try app.register(access: phone, token: token) }
        let options = ApusApp.LaunchOptions(
            endpoints: (1...3).map { HostPort(host: "127.0.0.1", port: cluster.endpointPort($0)) },
            authorityFile: cluster.file("pki/ca.pem"))
        #expect(throws: ApusError(.badParameter)) {
            try app.setUp(.init(endpoints: [], authorityFile: options.authorityFile), delegate: delegate)
        }
        try app.setUp(options, delegate: delegate)
        #expect(throws: ApusError(.badParameter)) { try app.setUp(options, delegate: delegate) }
        #expect(app.linkStatus == .offline && app.session == nil)

        app.logLevel = .debug
        #expect(throws: ApusError(.tokenInvalid)) {
            try app.register(access: AccessID(unchecked: "other"), token: token)
        }
        let session = try app.register(access: phone, token: token)
        try await eventually("online") { app.linkStatus == .online }
        // On a busy machine the link may be lost and found again.
        try await eventually("it is reported") { delegate.states.last == .online }
        let states = delegate.states
        #expect(zip(states, states.dropFirst()).allSatisfy { $0 != $1 }, "a state is reported twice: \(states)")
        #expect(delegate.lines.contains { $0.contains(" [SDK] [D] ") }, "\(delegate.lines)")
        _ = try await session.ask(ClientListDevicesRequest())

        // The same identity registers elsewhere, and this app again after that.
        app.logLevel = .error
        delegate.clear()
        let other = try cluster.session(node: 2, token: token)
        try await eventually("kicked") { app.linkStatus == .kicked }
        try await eventually("it is reported") { delegate.states.last == .kicked }
        #expect(
            !delegate.lines.isEmpty && delegate.lines.allSatisfy { $0.contains(" [SDK] [E] ") }, "\(delegate.lines)")
        other.close()
        try app.register(access: phone, token: token)
        try await eventually("online again") { app.linkStatus == .online }

        // A token that the cluster did not sign.
        delegate.clear()
        let parts = token.split(separator: ".")
        let forged = "\(parts[0]).\(parts[1]).\(String(parts[2].reversed()))"
        try app.register(access: phone, token: forged)
        try await eventually("refused") { app.linkStatus == .tokenFailed }
        try await eventually("it is reported") { delegate.states.last == .tokenFailed }
        #expect(delegate.lines.count == 1 && delegate.lines[0].contains("12001"), "\(delegate.lines)")
        #expect(delegate.lines.allSatisfy { !$0.contains(parts[1]) }, "a token is in the log")
        app.session?.close()
    }
}
