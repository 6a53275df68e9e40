import ApusClient
import ApusCore
import Logging
import NIOCore
import NIOPosix

/// The session of a command, on an event loop of its own. The command ends with the session's error when its token is
/// refused or another client takes its place.
struct CommandSession: Sendable {
    let session: ClientSession
    let ending: Ending
    let group: MultiThreadedEventLoopGroup

    /// - Parameter onState: takes the state of the link. Nil: it is logged.
    init(
        _ configuration: ClientConfiguration, log: Logger,
        onState: (@Sendable (LinkState, ApusError?) -> Void)? = nil
    ) throws(ApusError) {
        let (group, ending) = (MultiThreadedEventLoopGroup(numberOfThreads: 1), Ending())
        session = try ClientSession(configuration: configuration, eventLoop: group.next(), log: log) { state, error in
            if let onState { onState(state, error) } else { LinkReport.say(state, error, to: log) }
            if state == .tokenFailed || state == .kicked { ending.end(error ?? ApusError(.tokenInvalid)) }
        }
        (self.group, self.ending) = (group, ending)
    }

    /// Ends the session. Nothing arrives after this.
    func close() async throws {
        session.close()
        try await group.shutdownGracefully()
    }
}
