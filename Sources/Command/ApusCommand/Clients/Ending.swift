import ApusClient
import ApusCore
import ArgumentParser
import Foundation
import Logging
import UnixSignals

/// Ends a client verb: by its own end, a time limit, a signal, or the cluster's last word.
final class Ending: Sendable {
    private let stream: AsyncStream<ApusError>
    private let feed: AsyncStream<ApusError>.Continuation

    init() { (stream, feed) = AsyncStream.makeStream(bufferingPolicy: .bufferingOldest(1)) }

    /// The verb has to end, with this error. From any thread; the first counts.
    func end(_ error: ApusError) { feed.yield(error) }

    /// Runs the verb's work until it ends or something ends it.
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

/// Says how the link to the cluster stands, and while it is down why.
enum LinkReport {
    static func say(_ state: LinkState, _ error: ApusError?, to log: Logger) {
        switch state {
        case .online:
            log.notice("Connected.")
        case .offline where error?.code == .cancelled:
            break  // The verb ends the session itself.
        case .offline:
            let facts = error.map { Logger.facts(of: $0) } ?? [:]
            log.warning("No door of the cluster can be reached; trying on.", metadata: facts)
        case .tokenFailed, .kicked:
            break  // The verb ends with the error itself.
        }
    }
}
