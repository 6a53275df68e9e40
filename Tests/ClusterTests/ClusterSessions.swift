import ApusClient
import ApusContract
import ApusCore
import Foundation
import Logging
import NIOPosix
import Synchronization
import Testing

extension Cluster {
    /// A token as `apus admin token` mints it.
    func token(_ arguments: String...) throws -> String {
        let minted = try Self.run(["admin", "token"] + arguments + ["--ttl", "2h", "--dir", directory])
        try #require(minted.status == 0, "\(minted.all)")
        return minted.output.trimmingCharacters(in: .whitespacesAndNewlines)
    }

    /// A session of this process, which connects to the node first. The cluster has three.
    func session(
        node: Int, token: String, role: ClientRole = .app, ends: SessionEnds? = nil, ports: [Int] = []
    ) throws -> ClientSession {
        let listeners = (0..<3).map { endpointPort((node - 1 + $0) % 3 + 1) }
        let endpoints = (ports.isEmpty ? listeners : ports).map { HostPort(host: "127.0.0.1", port: $0) }
        let session = try ClientSession(
            configuration: ClientConfiguration(
                endpoints: endpoints, authorityFile: file("pki/ca.pem"), token: token, role: role),
            eventLoop: MultiThreadedEventLoopGroup.singleton.next(),
            log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() },
            onLinkState: { state, error in
                guard state == .tokenFailed || state == .kicked else { return }
                ends?.error.withLock { $0 = error }
            })
        session.start()
        return session
    }
}

/// The error that ended a session for good.
final class SessionEnds: Sendable {
    let error = Mutex<ApusError?>(nil)

    /// Waits for ten seconds.
    func isEnded(by code: ErrorCode) async throws -> Bool {
        for _ in 0..<200 {
            if let error = error.withLock({ $0 }) { return error.code == code }
            try await Task.sleep(for: .milliseconds(50))
        }
        return false
    }
}

/// Repeats what fails because a node or its owner is on its way.
@discardableResult
func eventually<T: Sendable>(_ body: () async throws(ApusError) -> T) async throws -> T {
    var last = ApusError(.internalFailure)
    for _ in 0..<200 {
        do throws(ApusError) { return try await body() } catch { last = error }
        try await Task.sleep(for: .milliseconds(50))
    }
    throw last
}

/// Expects that the work fails with this number. A session that is still connecting, or connects again, is waited for:
/// ten seconds at most.
func fails(
    _ code: ErrorCode, sourceLocation: SourceLocation = #_sourceLocation,
    _ body: () async throws(ApusError) -> Void
) async {
    for attempt in 0..<200 {
        do throws(ApusError) {
            try await body()
            Issue.record("no error \(code)", sourceLocation: sourceLocation)
        } catch {
            if error.code == .notConnected, code != .notConnected, attempt < 199 {
                try? await Task.sleep(for: .milliseconds(50))
                continue
            }
            #expect(error.code == code, "\(error)", sourceLocation: sourceLocation)
        }
        return
    }
}
