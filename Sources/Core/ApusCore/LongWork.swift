/// Does work that needs the processor for milliseconds on the threads that all tasks share, and waits for it. Requests
/// run on the event loop of their connection, and the others on the loop would wait for the work.
///
/// - Throws: what the work throws.
package func offEventLoop<Value: Sendable>(
    _ work: @escaping @Sendable () throws(ApusError) -> Value
) async throws(ApusError) -> Value {
    // A task that is not detached, and `@concurrent`, would stay on the event loop that the caller prefers.
    try await Task.detached { () -> Result<Value, ApusError> in
        do throws(ApusError) { return .success(try work()) } catch { return .failure(error) }
    }.value.get()
}
