import ApusCore
import ApusStorage
import Foundation
import Synchronization
import Testing

/// Two processes that swap in turn, and what they may rely on after the power went.
private struct PowerCutRun {
    let files: SimulatedFiles
    /// The newest revision on which a process acted: its swap was reported, or it was read.
    var actedOn: UInt64 = 0
    /// What was tried under each revision.
    var tried: [UInt64: Set<[UInt8]>] = [:]
    private var counter: UInt8 = 0

    init(files: SimulatedFiles) { self.files = files }

    private func open() async throws(ApusError) -> LocalOwnershipStore {
        var limits = LocalOwnershipLimits()
        limits.revisionsKept = 16
        return try await LocalOwnershipStore(path: "/ownership", cluster: testCluster, limits: limits, files: files)
    }

    /// Swaps until the power goes, or so many times.
    mutating func work(swapCount: Int) async {
        guard let first = try? await open(), let second = try? await open() else { return }
        for number in 0..<swapCount {
            let store = number % 3 == 0 ? second : first
            guard let value = try? await store.read() ?? OwnershipValue(revision: 0, bytes: []) else { return }
            actedOn = max(actedOn, value.revision)
            counter &+= 1
            tried[value.revision + 1, default: []].insert([counter])
            guard let made = try? await store.compareAndSwap(expected: value.revision, value: [counter]) else { return }
            actedOn = max(actedOn, made)
        }
    }

    /// What a process finds that starts after the power came back.
    mutating func check(_ context: String) async throws {
        let store = try await open()
        let value = try await store.read() ?? OwnershipValue(revision: 0, bytes: [])
        #expect(value.revision >= actedOn, "\(context): revision \(value.revision), and \(actedOn) was acted on")
        if value.revision > 0 {
            #expect(tried[value.revision]?.contains(value.bytes) == true, "\(context): nobody tried \(value)")
        }
        tried[value.revision] = [value.bytes]
        actedOn = value.revision
    }
}

@Suite("The ownership store when the power goes (D4)", .timeLimit(.minutes(5)))
struct OwnershipPowerCutTests {
    /// How many steps the work takes where nothing cuts it.
    private static func stepCount(prefill: Int) async throws -> Int {
        let files = SimulatedFiles()
        var run = PowerCutRun(files: files)
        await run.work(swapCount: prefill)
        let before = files.stepCount
        await run.work(swapCount: 5)
        return files.stepCount - before
    }

    @Test(
        "Cut after every single step, again and again: no swap that was reported or acted on is lost, by any seed",
        arguments: [0, 1, 30])
    func cutEverywhere(prefill: Int) async throws {
        let steps = try await Self.stepCount(prefill: prefill)
        #expect(steps > 50)
        for cut in 0...steps {
            for seed in 0..<UInt64(6) {
                var random = SeededRandom(seed: UInt64(cut) << 8 | seed)
                let files = SimulatedFiles()
                var run = PowerCutRun(files: files)
                await run.work(swapCount: prefill)
                for round in 0..<3 {
                    files.cut(after: round == 0 ? cut : Int(random.next() % UInt64(steps)))
                    await run.work(swapCount: 5)
                    files.restart(random: &random)
                    try await run.check("cut after \(cut) steps, seed \(seed), round \(round)")
                }
            }
        }
    }

    @Test("The simulated disk does lose: content and names that were not synced are gone by some seed")
    func loses() throws {
        var (lostName, lostContent) = (0, 0)
        for seed in 0..<UInt64(64) {
            var random = SeededRandom(seed: seed)
            let files = SimulatedFiles()
            try files.makeDirectory("/d")
            try files.syncDirectory("/")
            files.cut(after: 2)
            #expect(throws: FileFailure.self) { try files.write([1, 2, 3], to: "/d/a") }
            files.restart(random: &random)
            guard let bytes = try? files.read("/d/a", byteCountMax: 10) else {
                lostName += 1
                continue
            }
            if bytes != [1, 2, 3] { lostContent += 1 }
        }
        #expect(lostName > 8 && lostContent > 8)
    }
}

/// A store that is held in the middle of a swap, as SIGSTOP holds its process, while another goes on.
@Suite("The ownership store while a process is stopped (D4)", .timeLimit(.minutes(2)), .serialized)
struct OwnershipPauseTests {
    /// More than the operations of one swap.
    private static let operationCount = 16

    private static func open(_ files: any StoreFiles, _ path: String) async throws(ApusError) -> LocalOwnershipStore {
        var limits = LocalOwnershipLimits()
        limits.revisionsKept = 16
        return try await LocalOwnershipStore(path: path, cluster: testCluster, limits: limits, files: files)
    }

    @Test(
        "Stopped before any operation of a swap, a process delays nobody, and what it reports afterwards is true",
        arguments: [1, 5, 15, 16, 17, 60])
    func stoppedAnywhere(swapCount: Int) async throws {
        var (successCount, pauseCount) = (0, 0)
        for operation in 0..<Self.operationCount {
            let scratch = try Scratch(isInMemory: true)
            let path = scratch.path + "/ownership"
            let pausing = PausingFiles(SystemStoreFiles())
            let stopped = try await Self.open(pausing, path)
            let running = try await Self.open(SystemStoreFiles(), path)
            _ = try await running.compareAndSwap(expected: 0, value: [0])
            #expect(try await stopped.revision() == 1)

            pausing.pause(before: operation)
            let outcome = Task { () -> UInt64? in
                do {
                    return try await stopped.compareAndSwap(expected: 1, value: [99])
                } catch {
                    // Uncertain; never a claim.
                    return nil
                }
            }
            guard await Task.detached(operation: { pausing.waitUntilPaused() }).value else {
                #expect(await outcome.value == 2)
                break
            }
            pauseCount += 1
            var made: [UInt64: [UInt8]] = [:]
            for number in 0..<swapCount {
                let began = MonotonicTime.now()
                let value = try #require(try await running.read())
                let bytes = [UInt8(number + 100)]
                let revision = try #require(try await running.compareAndSwap(expected: value.revision, value: bytes))
                made[revision] = bytes
                #expect(MonotonicTime.now() - began < .milliseconds(200))
            }
            pausing.resume()
            let claimed = await outcome.value
            let newest = try #require(try await running.read())
            if let claimed {
                successCount += 1
                #expect(claimed == 2 && made[2] == nil, "operation \(operation): both made revision 2")
            }
            #expect(newest.bytes == made[newest.revision], "operation \(operation): \(newest) was not the last swap")
            #expect(newest.revision >= UInt64(swapCount) + 1)
            #expect(try await stopped.read() == newest)
            #expect(try await Self.open(SystemStoreFiles(), path).read() == newest)
        }
        #expect(pauseCount >= 8)
        // Held after its link, and not for so long that it cannot tell any more, it says so.
        if swapCount < 15 { #expect(successCount > 0) }
    }
}
