import ApusCore
import CoreMetrics
import DequeModule
import Synchronization

/// The operations of a store, for metrics.
enum ObjectOperation: String, CaseIterable { case put, get, head, list, delete, leftovers }

/// The metrics of an object store.
struct ObjectStoreMetrics: Sendable {
    private struct Instruments {
        let succeeded: Counter
        let failed: Counter
        let duration: CoreMetrics.Timer
    }

    private let instruments: [ObjectOperation: Instruments]
    /// Bytes of objects that were put.
    private let bytesPut = Counter(label: "apus_objects_bytes_total", dimensions: [("direction", "put")])
    /// Bytes of objects that were read.
    private let bytesRead = Counter(label: "apus_objects_bytes_total", dimensions: [("direction", "get")])
    /// Requests to S3 that were repeated.
    private let retries = Counter(label: "apus_objects_retries_total")
    /// Operations that were refused because too many waited (10007).
    let refused = Counter(label: "apus_objects_refused_total")
    /// What puts that ended without a result have left, as of the last count.
    private let leftovers = Gauge(label: "apus_objects_leftovers")

    init() {
        instruments = Dictionary(
            uniqueKeysWithValues: ObjectOperation.allCases.map { operation in
                let name = operation.rawValue
                return (
                    operation,
                    Instruments(
                        succeeded: Counter(
                            label: "apus_objects_operations_total",
                            dimensions: [("operation", name), ("outcome", "succeeded")]),
                        failed: Counter(
                            label: "apus_objects_operations_total",
                            dimensions: [("operation", name), ("outcome", "failed")]),
                        duration: CoreMetrics.Timer(
                            label: "apus_objects_seconds", dimensions: [("operation", name)]))
                )
            })
    }

    func put(byteCount: Int) { bytesPut.increment(by: byteCount) }
    func read(byteCount: Int) { bytesRead.increment(by: byteCount) }
    func repeated() { retries.increment() }
    func left(_ count: Int) { leftovers.record(count) }

    func ended(_ operation: ObjectOperation, isSuccess: Bool, after time: Duration) {
        guard let instruments = instruments[operation] else { return }
        (isSuccess ? instruments.succeeded : instruments.failed).increment()
        instruments.duration.recordNanoseconds(time.nanoseconds)
    }
}

/// Runs the operations of a store within its bounds: so many at a time, so many that wait, and each for so long.
///
/// Concurrency model: any task. A `Mutex` guards the count and the queue.
final class OperationRunner: Sendable {
    private struct Waiting {
        let number: UInt64
        let continuation: CheckedContinuation<Result<OperationSlot, ApusError>, Never>
    }

    private struct State {
        var runningCount = 0
        var waiting: Deque<Waiting> = []
        var nextNumber: UInt64 = 0
        /// Waits that were cancelled before they began.
        var cancelled: Set<UInt64> = []
    }

    private let limits: ObjectStoreLimits
    private let state = Mutex(State())
    let metrics = ObjectStoreMetrics()

    init(_ limits: ObjectStoreLimits) { self.limits = limits }

    /// Runs an operation.
    ///
    /// - Throws: 10007 if too many wait, 10005 after the time limit, 10006 if the task is cancelled, and what the
    ///   operation throws. It is cancelled at the time limit.
    func run<Value: Sendable>(
        _ operation: ObjectOperation,
        _ body: @escaping @Sendable (_ slot: OperationSlot) async throws(ApusError) -> Value
    ) async throws(ApusError) -> Value {
        let start = MonotonicTime.now()
        let result = await OperationDeadline.run(within: limits.operationTimeout) {
            () async throws(ApusError) -> Value in
            let slot = try await self.enter()
            return try await body(slot)
        }
        let isSuccess = if case .success = result { true } else { false }
        metrics.ended(operation, isSuccess: isSuccess, after: .now() - start)
        return try result.get()
    }

    // MARK: Slots

    private func enter() async throws(ApusError) -> OperationSlot {
        let number = state.withLock { state in
            state.nextNumber += 1
            return state.nextNumber
        }
        let result = await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in wait(number, continuation) }
        } onCancel: {
            cancel(number)
        }
        state.withLock { _ = $0.cancelled.remove(number) }
        return try result.get()
    }

    private func wait(_ number: UInt64, _ continuation: CheckedContinuation<Result<OperationSlot, ApusError>, Never>) {
        enum Step { case start, cancel, refuse, stay }
        let step: Step = state.withLock { state in
            if state.cancelled.remove(number) != nil { return .cancel }
            if state.runningCount < limits.runningMax {
                state.runningCount += 1
                return .start
            }
            guard state.waiting.count < limits.waitingMax else { return .refuse }
            state.waiting.append(Waiting(number: number, continuation: continuation))
            return .stay
        }
        switch step {
        case .start: continuation.resume(returning: .success(OperationSlot(self)))
        case .cancel: continuation.resume(returning: .failure(ApusError(.cancelled)))
        case .refuse:
            metrics.refused.increment()
            let error = ApusError(.overloaded, "\(limits.waitingMax) operations of the object store wait")
            continuation.resume(returning: .failure(error))
        case .stay: break
        }
    }

    private func cancel(_ number: UInt64) {
        let continuation = state.withLock { state -> CheckedContinuation<Result<OperationSlot, ApusError>, Never>? in
            guard let index = state.waiting.firstIndex(where: { $0.number == number }) else {
                state.cancelled.insert(number)
                return nil
            }
            return state.waiting.remove(at: index).continuation
        }
        continuation?.resume(returning: .failure(ApusError(.cancelled)))
    }

    /// The end of a slot: the next operation begins.
    fileprivate func leave() {
        let next = state.withLock { state -> CheckedContinuation<Result<OperationSlot, ApusError>, Never>? in
            guard let next = state.waiting.popFirst() else {
                state.runningCount -= 1
                return nil
            }
            return next.continuation
        }
        next?.resume(returning: .success(OperationSlot(self)))
    }
}

/// The place of an operation in progress. It ends with its last reference: a blocking call keeps it until the call
/// returns, also if the operation has ended before.
final class OperationSlot: Sendable {
    private let runner: OperationRunner

    fileprivate init(_ runner: OperationRunner) { self.runner = runner }

    deinit { runner.leave() }
}

/// A time limit for work that ends soon after its cancellation.
enum OperationDeadline {
    private enum Event<Value: Sendable>: Sendable {
        case ended(Result<Value, ApusError>)
        case late
        case stopped
    }

    /// Runs the work, and cancels it after the time. A result that comes nevertheless counts.
    static func run<Value: Sendable>(
        within time: Duration, _ body: @escaping @Sendable () async throws(ApusError) -> Value
    ) async -> Result<Value, ApusError> {
        await withTaskGroup(of: Event<Value>.self) { group in
            group.addTask {
                do throws(ApusError) { return .ended(.success(try await body())) } catch {
                    return .ended(.failure(error))
                }
            }
            group.addTask { (try? await Task.sleep(for: time)) == nil ? .stopped : .late }
            var (result, isLate): (Result<Value, ApusError>?, Bool) = (nil, false)
            for await event in group {
                switch event {
                case .ended(let ended): result = ended
                case .late: isLate = result == nil
                case .stopped: continue
                }
                group.cancelAll()
            }
            if isLate, case .failure(let error) = result, error.code == .cancelled {
                return .failure(ApusError(.deadlineExceeded, "the object store does not answer in time"))
            }
            return result ?? .failure(ApusError(.cancelled))
        }
    }
}
