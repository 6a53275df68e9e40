import ApusCore
import ApusEtcd
import Testing

@Suite("Watch of the ownership store in etcd: the machine (D4)")
struct EtcdWatchStateMachineTests {
    typealias Machine = EtcdWatchStateMachine

    private func machine(seed: UInt64 = 1) -> Machine {
        Machine(retryDelayMin: .milliseconds(100), retryDelayMax: .seconds(1), seed: seed)
    }

    /// A machine whose watch is open, after a read at etcd's revision 10 that found the value's revision 7.
    private func watching() -> Machine {
        var machine = machine()
        #expect(machine.handle(.starting) == .read)
        #expect(machine.handle(.read(at: 10, value: 7)) == .report(7))
        #expect(machine.handle(.starting) == .watch(from: 11))
        #expect(machine.handle(.response(response { $0.isCreated = true })) == .none)
        return machine
    }

    private func response(at revision: Int64 = 10, _ change: (inout Machine.Response) -> Void = { _ in })
        -> Machine.Response
    {
        var response = Machine.Response()
        response.revision = revision
        change(&response)
        return response
    }

    private func delay(_ action: Machine.Action) -> (Duration, Machine.Restart)? {
        guard case .wait(let delay, let reason) = action else { return nil }
        return (delay, reason)
    }

    @Test("A watch that was lost is opened again after the last change")
    func resumes() throws {
        var machine = watching()
        #expect(machine.handle(.response(response(at: 12) { $0.newestChange = 12 })) == .report(12))
        #expect(try #require(delay(machine.handle(.ended))).1 == .lost)
        #expect(machine.handle(.starting) == .watch(from: 13))
    }

    @Test("A watch without changes is opened again after the read")
    func resumesAfterRead() {
        var machine = watching()
        // The revision of progress is no position: changes of it may follow.
        #expect(machine.handle(.response(response(at: 15))) == .none)
        _ = machine.handle(.ended)
        #expect(machine.handle(.starting) == .watch(from: 11))
    }

    @Test("After a compaction the keys are read, and what changed is reported")
    func compaction() throws {
        var machine = watching()
        #expect(
            machine.handle(
                .response(
                    response(at: 30) {
                        $0.isCanceled = true
                        $0.compactRevision = 25
                    })) == .close)
        #expect(try #require(delay(machine.handle(.ended))).1 == .compacted)
        #expect(machine.handle(.starting) == .read)
        #expect(machine.handle(.read(at: 31, value: 28)) == .report(28))
        #expect(machine.handle(.starting) == .watch(from: 32))
    }

    @Test("A read that shows what is known reports nothing")
    func unchanged() {
        var machine = watching()
        _ = machine.handle(.response(response { $0.compactRevision = 11 }))
        _ = machine.handle(.ended)
        #expect(machine.handle(.starting) == .read)
        #expect(machine.handle(.read(at: 20, value: 7)) == .none)
    }

    @Test("An earlier revision than before leads to a read")
    func wentBack() throws {
        var machine = watching()
        #expect(machine.handle(.response(response(at: 9))) == .close)
        #expect(try #require(delay(machine.handle(.ended))).1 == .wentBack)
        #expect(machine.handle(.starting) == .read)
        #expect(machine.handle(.read(at: 9, value: 4)) == .report(4))
    }

    @Test("A watch that etcd cancels is opened again, later and later")
    func canceled() throws {
        var machine = watching()
        for count in 0..<8 {
            #expect(
                machine.handle(
                    .response(
                        response {
                            $0.isCreated = true
                            $0.isCanceled = true
                        })) == .close)
            let (wait, reason) = try #require(delay(machine.handle(.ended)))
            let longest = min(Duration.milliseconds(100) * (1 << count), .seconds(1))
            #expect(reason == .canceled && wait >= longest / 2 && wait <= longest)
            if count % 3 == 2 {
                #expect(machine.handle(.starting) == .read)
                #expect(machine.handle(.read(at: 10, value: 7)) == .none)
            }
            #expect(machine.handle(.starting) == .watch(from: 11))
        }
    }

    @Test("After three watches in a row without a change the keys are read")
    func fruitless() {
        var machine = watching()
        for _ in 0..<2 {
            _ = machine.handle(.ended)
            #expect(machine.handle(.starting) == .watch(from: 11))
            #expect(machine.handle(.response(response { $0.isCreated = true })) == .none)
        }
        #expect(machine.handle(.response(response(at: 12) { $0.newestChange = 12 })) == .report(12))
        for _ in 0..<2 {
            _ = machine.handle(.ended)
            #expect(machine.handle(.starting) == .watch(from: 13))
        }
        _ = machine.handle(.ended)
        #expect(machine.handle(.starting) == .read)
        #expect(machine.handle(.read(at: 90, value: 80)) == .report(80))
        #expect(machine.handle(.starting) == .watch(from: 91))
    }

    @Test("A silent watch is closed after three requests for progress, and an answer starts the count again")
    func silent() throws {
        var machine = watching()
        for _ in 0..<3 { #expect(machine.handle(.interval) == .ask) }
        #expect(machine.handle(.response(response())) == .none)
        for _ in 0..<3 { #expect(machine.handle(.interval) == .ask) }
        #expect(machine.handle(.interval) == .close)
        #expect(try #require(delay(machine.handle(.ended))).1 == .silent)
        #expect(machine.handle(.starting) == .watch(from: 11))
        #expect(machine.handle(.interval) == .ask)
    }

    @Test("The answer to a read starts the count of silence again, and is no position")
    func answered() {
        var machine = watching()
        for _ in 0..<5 {
            for _ in 0..<3 { #expect(machine.handle(.interval) == .ask) }
            #expect(machine.handle(.answered(at: 90, newest: 7)) == .none)
        }
        _ = machine.handle(.ended)
        #expect(machine.handle(.starting) == .watch(from: 11))
    }

    @Test("A read shows a change that the watch has not shown; the watch continues after it")
    func missedChange() {
        var machine = watching()
        #expect(machine.handle(.interval) == .ask)
        #expect(machine.handle(.answered(at: 15, newest: 12)) == .report(12))
        #expect(machine.handle(.interval) == .ask)
        #expect(machine.handle(.answered(at: 16, newest: 12)) == .none)
        _ = machine.handle(.ended)
        #expect(machine.handle(.starting) == .watch(from: 13))
    }

    @Test("An earlier revision in the answer to a read closes the watch, unless a change came after the question")
    func answerWentBack() throws {
        var machine = watching()
        #expect(machine.handle(.interval) == .ask)
        #expect(machine.handle(.response(response(at: 12) { $0.newestChange = 12 })) == .report(12))
        #expect(machine.handle(.interval) == .ask)
        #expect(machine.handle(.answered(at: 11, newest: 7)) == .none)
        #expect(machine.handle(.interval) == .ask)
        #expect(machine.handle(.answered(at: 11, newest: 7)) == .close)
        #expect(try #require(delay(machine.handle(.ended))).1 == .wentBack)
        #expect(machine.handle(.starting) == .read)
    }

    @Test("Waits differ between nodes, and a confirmed watch resets them")
    func waits() throws {
        var waits: Set<Duration> = []
        for seed in 0..<20 {
            var machine = machine(seed: UInt64(seed))
            _ = machine.handle(.starting)
            for _ in 0..<40 {
                let wait = try #require(delay(machine.handle(.ended))).0
                #expect(wait > .zero && wait <= .seconds(1))
                _ = machine.handle(.starting)
            }
            waits.insert(try #require(delay(machine.handle(.ended))).0)
        }
        #expect(waits.count > 10)
        var machine = watching()
        for _ in 0..<10 { _ = machine.handle(.ended) }
        _ = machine.handle(.starting)
        _ = machine.handle(.response(response { $0.isCreated = true }))
        #expect(try #require(delay(machine.handle(.ended))).0 <= .milliseconds(100))
    }
}
