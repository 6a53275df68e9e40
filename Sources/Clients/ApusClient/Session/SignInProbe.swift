import ApusContract
package import ApusCore
import ApusTLS
import ApusWire
import Foundation
package import NIOCore
import SwiftProtobuf

/// Signs in, leaves, and signs in again, as fast as the node allows: for measurements of sign-ins.
///
/// Concurrency model: confined to `eventLoop`. `start` and the results may be used by any thread that hops to it.
package final class SignInProbe: ClientConnectionOwner, @unchecked Sendable {  // SAFETY: confined to `eventLoop`.
    package struct Result: Sendable {
        package var signedIn = 0
        package var failed = 0
        /// The last failure.
        package var error: ApusError?
    }

    package let eventLoop: any EventLoop
    private let configuration: ClientConfiguration
    private let tls: TLSClientContext
    /// True if it signs in with the ticket and the TLS session of the previous time.
    private let resumes: Bool
    private var resumption = TLSResumption()
    private var instance: UInt64 = 0
    private var ticket = Data()
    private var connection: ClientConnection?
    private var nextID: LinkStateMachine.AttemptID = 1
    private var result = Result()
    private var end: EventLoopPromise<Result>?

    /// - Throws: 10022 if the authority's file cannot be used.
    package init(configuration: ClientConfiguration, resumes: Bool, eventLoop: any EventLoop) throws(ApusError) {
        self.configuration = configuration
        self.resumes = resumes
        self.eventLoop = eventLoop
        tls = try TLSClientContext(authorityFile: configuration.authorityFile)
    }

    /// Signs in repeatedly for a while. Returns the results.
    package func run(for duration: Duration) async throws -> Result {
        let promise = eventLoop.makePromise(of: Result.self)
        eventLoop.execute { [self] in
            result = Result()
            // A new client: others of its identity may have superseded the previous one, as long as tickets are valid.
            (instance, ticket, resumption) = (UInt64.random(in: 1...(.max)), Data(), TLSResumption())
            end = promise
            eventLoop.assumeIsolated().scheduleTask(in: .nanoseconds(duration.nanoseconds)) { [self] in
                end?.succeed(result)
                end = nil
                connection?.close()
                connection = nil
            }
            connect()
        }
        return try await promise.futureResult.get()
    }

    private func connect() {
        guard end != nil, let endpoint = configuration.endpoints.first else { return }
        if !resumes { resumption = TLSResumption() }
        let connection = ClientConnection(id: nextID, endpoint: endpoint, eventLoop: eventLoop)
        nextID += 1
        connection.owner = self
        self.connection = connection
        connection.connect(timeout: Self.connectTimeout)
    }
    private static let connectTimeout = Duration.seconds(8)

    func connected(_ connection: ClientConnection) { connection.secure(tls: tls, resumption: resumption) }

    func secured(_ connection: ClientConnection) {
        connection.greet(
            .with {
                $0.version = 1
                $0.versionMin = 1
                $0.role = configuration.role
                $0.token = configuration.token
                $0.ticket = ticket
                $0.agent = configuration.agent
                $0.instance = instance
            })
    }

    func welcomed(_ connection: ClientConnection, _ welcome: ClientWelcome) {
        if resumes { ticket = welcome.ticket }
        result.signedIn += 1
        connection.close()
        connect()
    }

    func closed(_ connection: ClientConnection, error: ApusError?, node: String) {
        result.failed += 1
        result.error = error
        // With a delay, so that a node that refuses is not asked in a tight loop.
        eventLoop.assumeIsolated().scheduleTask(in: .milliseconds(20)) { [self] in connect() }
    }

    func received(_ frame: LinkFrame, on connection: ClientConnection) {}
    func heard(_ connection: ClientConnection) {}
    func ponged(_ connection: ClientConnection, _ pong: ClientPong, roundTrip: Duration) {}
    func streamOpened(_ connection: ClientConnection) {}
    func answered(_ connection: ClientConnection) {}
    func becameWritable(_ connection: ClientConnection) {}
}
