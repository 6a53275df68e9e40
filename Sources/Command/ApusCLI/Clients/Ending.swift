import ApusClient
import ApusCore
import ArgumentParser
import Foundation
import Logging
import UnixSignals

/// Ends a client command: when its work ends, at a time limit, at a signal, or at an error of the cluster.
final class Ending: Sendable {
    private let stream: AsyncStream<ApusError>
    private let feed: AsyncStream<ApusError>.Continuation

    init() { (stream, feed) = AsyncStream.makeStream(bufferingPolicy: .bufferingOldest(1)) }

    /// Ends the command with this error. May be called from any thread; the first call counts.
    func end(_ error: ApusError) { feed.yield(error) }

    /// Runs the command's work until it ends or is ended.
    func race(
        seconds: Double?, _ work: @escaping @Sendable () async throws(ApusError) -> Void
    ) async -> Result<Void, ApusError> {
        await withTaskGroup(of: Result<Void, ApusError>.self) { group in
            group.addTask {
                do throws(ApusError) { return .success(try await work()) } catch { return .failure(error) }
            }
            group.addTask { [stream] in
                for await error in stream { return .failure(error) }
                return .success(())
            }
            group.addTask {
                for await _ in await UnixSignalsSequence(trapping: .sigterm, .sigint) { return .success(()) }
                return .success(())
            }
            if let seconds {
                group.addTask {
                    try? await Task.sleep(for: .seconds(seconds))
                    return .success(())
                }
            }
            let first = await group.next() ?? .success(())
            group.cancelAll()
            return first
        }
    }
}

/// Logs the state of the link to the cluster, and the reason while it is down.
enum LinkReport {
    static func say(_ state: LinkState, _ error: ApusError?, to log: Logger) {
        switch state {
        case .online:
            log.notice("Connected")
        case .offline where error?.code == .cancelled:
            break  // The command ends the session itself.
        case .offline:
            let facts = error.map { Logger.facts(of: $0) } ?? [:]
            log.warning("No endpoint of the cluster can be reached; retrying", metadata: facts)
        case .tokenFailed, .kicked:
            break  // The command ends with the error itself.
        }
    }
}
