package import ApusCore
import CoreMetrics
import Dispatch
import Foundation
import Logging
import ServiceLifecycle
import Synchronization

/// Delivers messages to a webhook and a spool directory (CALL-10).
///
/// ``WebhookQueueStateMachine`` decides when each message is sent. An attempt is a POST with the headers
/// `Idempotency-Key` and ``WebhookSignature/header``. A status of 2xx accepts the message. After 408, 425, 429, 5xx or
/// no answer, another attempt follows. Any other status refuses the message. Redirects are not followed.
///
/// Isolation: any thread. A `Mutex` guards the state machine.
package final class WebhookSender: Service {
    private let configuration: WebhookConfiguration
    private let spool: SpoolDirectory?
    /// A serial queue, so that a message's file is written and removed in order.
    private let disk = DispatchQueue(label: "apus.push.spool")
    private let log: LogLimiter
    private let queue: Mutex<WebhookQueueStateMachine>
    private let work: AsyncStream<WebhookMessage>
    private let workFeed: AsyncStream<WebhookMessage>.Continuation
    private let wallSeconds: @Sendable () -> Int64
    private let accepted = Counter(label: "apus_push_sent_total", dimensions: [("result", "accepted")])
    private let refused = Counter(label: "apus_push_sent_total", dimensions: [("result", "refused")])
    private let expired = Counter(label: "apus_push_sent_total", dimensions: [("result", "expired")])
    private let cancelled = Counter(label: "apus_push_sent_total", dimensions: [("result", "cancelled")])
    private let dropped = Counter(label: "apus_push_sent_total", dimensions: [("result", "dropped")])
    private let failed = Counter(label: "apus_push_attempts_failed_total")
    private let waiting = Gauge(label: "apus_push_waiting")

    private static let tick = Duration.milliseconds(50)

    /// - Parameter wallSeconds: the clock of the signatures, in Unix seconds.
    package init(
        _ configuration: WebhookConfiguration, limited: LogLimiter, wallSeconds: @escaping @Sendable () -> Int64
    ) {
        self.configuration = configuration
        spool = configuration.spoolDirectory.map { SpoolDirectory(path: $0, countMax: configuration.spoolMax) }
        (log, self.wallSeconds) = (limited, wallSeconds)
        queue = Mutex(WebhookQueueStateMachine(configuration.queue))
        // The state machine bounds the stream: it has each message once for each attempt.
        (work, workFeed) = AsyncStream.makeStream()
    }

    /// False if messages have no destination.
    package var isUsed: Bool { !configuration.isEmpty }

    /// Sends a message. Returns without waiting.
    package func send(_ message: WebhookMessage) {
        if let spool {
            disk.async { [self] in
                do throws(ApusError) { try spool.write(message) } catch { drop(error) }
            }
        }
        guard configuration.url != nil else { return }
        do throws(ApusError) {
            perform(try queue.withLock { queue throws(ApusError) in try queue.add(message, at: .now()) })
        } catch {
            drop(error)
        }
    }

    /// Withdraws a message, and removes it from the spool directory. If the message may have been sent, or its file was
    /// already removed, `next` is sent after it.
    package func cancel(id: String, then next: WebhookMessage? = nil) {
        if let spool {
            disk.async { [self] in
                guard !spool.remove(id), let next else { return }
                do throws(ApusError) { try spool.write(next) } catch { drop(error) }
            }
        }
        guard configuration.url != nil else { return }
        do throws(ApusError) {
            perform(try queue.withLock { queue throws(ApusError) in try queue.cancel(id, then: next, at: .now()) })
        } catch {
            drop(error)
        }
    }

    private func drop(_ error: ApusError) {
        dropped.increment()
        log.log(.warning, "A push notification was dropped", metadata: Logger.facts(of: error))
    }

    private func perform(_ actions: [WebhookQueueStateMachine.Action]) {
        for action in actions {
            switch action {
            case .send(let message): workFeed.yield(message)
            case .ended(_, .accepted): accepted.increment()
            case .ended(_, .cancelled): cancelled.increment()
            case .ended(let message, .refused):
                refused.increment()
                log.log(.warning, "The webhook refused a message", metadata: ["apus.message": "\(message.id)"])
            case .ended(let message, .expired):
                expired.increment()
                log.log(
                    .warning, "The webhook did not take a message in time", metadata: ["apus.message": "\(message.id)"])
            }
        }
    }

    /// Sends messages until the node stops.
    package func run() async throws {
        if let url = configuration.url { try await run(at: url) } else { try? await gracefulShutdown() }
        // All earlier file operations are complete after this one.
        if spool != nil { await withCheckedContinuation { done in disk.async { done.resume() } } }
    }

    private func run(at url: String) async throws {
        let poster = try WebhookPoster(
            authorityFile: configuration.authorityFile, connectionsMax: configuration.queue.sendingMax)
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask { await self.advance() }
                for await message in self.work {
                    group.addTask { await self.attempt(message, at: url, with: poster) }
                }
                group.cancelAll()
            }
        }
        await poster.shutdown()
    }

    private func advance() async {
        while (try? await Task.sleep(for: Self.tick)) != nil {
            perform(queue.withLock { $0.advance(at: .now()) })
            waiting.record(Double(queue.withLock { $0.count }))
        }
    }

    private func attempt(_ message: WebhookMessage, at url: String, with poster: WebhookPoster) async {
        let answer: WebhookQueueStateMachine.Answer
        do {
            let status = try await poster.post(
                message.body, id: message.id, to: url, secrets: try secret().map { [$0] } ?? [],
                timeout: configuration.timeout, wallSeconds: wallSeconds()
            ).status
            answer = Self.answer(to: status)
            if answer != .accepted {
                note([LogKey.reason: "HTTP \(status)", "apus.message": "\(message.id)"])
            }
        } catch {
            answer = .unavailable
            note(Logger.facts(of: error).merging(["apus.message": "\(message.id)"]) { $1 })
        }
        perform(queue.withLock { $0.answered(message.id, answer, at: .now()) })
    }

    private func note(_ facts: Logger.Metadata) {
        failed.increment()
        log.log(.warning, "The webhook did not take a message", metadata: facts)
    }

    /// The result of an attempt by its HTTP status.
    static func answer(to status: Int) -> WebhookQueueStateMachine.Answer {
        switch status {
        case 200..<300: .accepted
        case 408, 425, 429, 500...: .unavailable
        default: .refused
        }
    }

    /// The secret of the signatures; nil if none is configured.
    ///
    /// - Throws: 10022 if the file cannot be read or is empty. The attempt is repeated.
    private func secret() throws(ApusError) -> [UInt8]? {
        guard let file = configuration.secretFile else { return nil }
        let text = try? String(contentsOfFile: file, encoding: .utf8)
        guard let line = text?.split(whereSeparator: \.isNewline).first, !line.isEmpty else {
            throw ApusError(.configurationInvalid, "the secret of the webhook in \(file) cannot be read")
        }
        return Array(line.utf8)
    }
}
