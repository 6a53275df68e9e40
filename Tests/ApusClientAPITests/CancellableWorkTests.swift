import ApusThreads
import Testing

@Suite("Work that another thread cancels")
struct CancellableWorkTests {
    @Test("Cancelling ends what waits, and only that")
    func running() async {
        let work = CancellableWork()
        let (started, feed) = AsyncStream.makeStream(of: Void.self)
        async let isCancelled = work.run {
            feed.yield()
            return (try? await Task.sleep(for: .seconds(60))) == nil
        }
        for await _ in started { break }
        work.cancel()
        #expect(await isCancelled)
        #expect(!Task.isCancelled)
    }

    @Test("Work that was cancelled before it began is cancelled from its start, and late cancelling does nothing")
    func before() async {
        let work = CancellableWork()
        work.cancel()
        #expect(await Task { await work.run { Task.isCancelled } }.value)
        let done = CancellableWork()
        #expect(await done.run { !Task.isCancelled })
        done.cancel()
        #expect(!Task.isCancelled)
    }
}
