import Dispatch

/// Does work that needs the processor for milliseconds or longer on a thread of its own, one after the other, and waits
/// for it. Requests run on the event loop of their connection, and the others on the loop would wait for the work. The
/// threads that all tasks share are as few as the processors, and one account's work would take them from the others.
///
/// - Throws: what the work throws.
package func offEventLoop<Value: Sendable>(
    _ work: @escaping @Sendable () throws(ApusError) -> Value
) async throws(ApusError) -> Value {
    let result: Result<Value, ApusError> = await withCheckedContinuation { continuation in
        LongWork.queue.async {
            do throws(ApusError) { continuation.resume(returning: .success(try work())) } catch {
                continuation.resume(returning: .failure(error))
            }
        }
    }
    return try result.get()
}

private enum LongWork {
    static let queue = DispatchQueue(label: "apus.work")
}
