package import ApusCore
import Synchronization

/// Records the operations of all clients of a run on the machine's monotonic clock.
///
/// The clients must run on one machine, because times of different machines cannot be compared. Processes of one
/// machine share the clock (`CLOCK_MONOTONIC`), so files of several recorders of one machine may be joined.
///
/// **Order.** A client calls ``invoke(client:entity:request:now:)`` before it sends a request, and
/// ``returned(_:_:now:)`` after it has the answer. The recorded interval then contains the true one, and a violation
/// is never an artefact of the recording.
///
/// **Limit.** At most ``operationCountMax`` operations are kept. A further one is refused with 10007 and must not be
/// carried out: a read could find the value of a write that the history does not have.
///
/// Isolation: any thread.
package final class HistoryRecorder: Sendable {
    /// The default limit. An operation takes about 120 bytes of memory.
    package static let operationCountMaxDefault = 1_000_000

    /// Names an operation that was invoked and has not returned.
    package struct Invocation: Sendable, Hashable {
        fileprivate let index: Int
    }

    /// The most operations that this recorder keeps.
    package let operationCountMax: Int
    private let recorded = Mutex<[RegisterOperation]>([])

    package init(operationCountMax: Int = HistoryRecorder.operationCountMaxDefault) {
        self.operationCountMax = operationCountMax
    }

    /// Records that a client is about to send a request.
    ///
    /// - Throws: 10007 over ``operationCountMax``. The client must not send the request.
    package func invoke(
        client: Int, entity: String, request: RegisterOperation.Request, now: MonotonicTime = .now()
    ) throws(ApusError) -> Invocation {
        let index = recorded.withLock { operations -> Int? in
            guard operations.count < operationCountMax else { return nil }
            operations.append(
                RegisterOperation(client: client, entity: entity, request: request, invokedAt: now))
            return operations.count - 1
        }
        guard let index else { throw ApusError(.overloaded, "the history has \(operationCountMax) operations") }
        return Invocation(index: index)
    }

    /// Records the end of an operation. An operation that never ends has an unknown outcome.
    ///
    /// - Precondition: the operation has no end yet, and its request can end so.
    package func returned(
        _ invocation: Invocation, _ outcome: RegisterOperation.Outcome, now: MonotonicTime = .now()
    ) {
        recorded.withLock { operations in
            let operation = operations[invocation.index]
            precondition(
                operation.returnedAt == nil && RegisterOperation.isPossible(outcome, of: operation.request),
                "\(operation) cannot end with \(outcome)")
            operations[invocation.index].outcome = outcome
            // The client stopped waiting at this time, which says nothing about the effect.
            if outcome != .unknown { operations[invocation.index].returnedAt = now }
        }
    }

    /// The number of operations so far.
    package var operationCount: Int { recorded.withLock { $0.count } }

    /// The operations so far, by their invocation. Those in progress have an unknown outcome.
    package var operations: [RegisterOperation] {
        // Clients take the time before the lock, so neighbours may be in the other order.
        recorded.withLock { $0 }.enumerated()
            .sorted { ($0.element.invokedAt, $0.offset) < ($1.element.invokedAt, $1.offset) }.map(\.element)
    }
}
