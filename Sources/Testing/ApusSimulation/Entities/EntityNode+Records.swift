import ApusCluster
import ApusCore
import ApusStorage

/// Steps that wait for a commit.
struct RecordWork {
    var steps: [RecordStep]
    var completion: ([Result<[UInt64], ApusError>]) -> Void
}

/// The states of a node's entities, stored as ``RecordedStates`` and ``GroupCommit`` do for recorded kinds.
extension EntityNode {
    private var unknown: ApusError { ApusError(.storageFailed, "the outcome is unknown") }

    // MARK: Both kinds

    func load(_ cell: SimulatedCell) {
        if cell.address.isRecorded { claimAndRead(cell) } else { loadReplica(cell) }
    }

    func loaded(
        _ cell: SimulatedCell, _ stored: EntityWorkload.Stored?, version: UInt64, isConfirmed: Bool = true
    ) {
        world.checkLoad(stored, of: cell, at: self)
        handle(.loaded(cell.address))
        guard let stored else { return perform(cell, cell.machine.loaded(nil)) }
        cell.version = version
        let memory = world.mutant == .forgetsRequests ? RequestMemory() : stored.memory
        let state = Machine.State(content: stored.content, memory: memory, reminders: stored.reminders)
        perform(cell, cell.machine.loaded(state, isConfirmed: isConfirmed))
    }

    func keep(_ state: Machine.State, _ earlier: [Reminder], _ cell: SimulatedCell) {
        if cell.address.isRecorded { keepRecord(state, earlier, cell) } else { keepReplica(state, cell) }
    }

    func kept(_ cell: SimulatedCell, _ outcome: KeepOutcome) {
        switch outcome {
        case .confirmed(let version):
            cell.version = version
            perform(cell, cell.machine.committed(.confirmed))
        case .unconfirmed(let error): perform(cell, cell.machine.committed(.unconfirmed(error)))
        case .lost(let error):
            handle(.unconfirmed(cell.address))
            perform(cell, cell.machine.committed(.lost(error)))
        }
    }

    // MARK: Records

    private func fence(_ epoch: Epoch) -> RecordFence { RecordFence(epoch: epoch, writer: "\(id)") }

    private func claimAndRead(_ cell: SimulatedCell) {
        let shard = cell.address.shard
        guard claimed[shard] != cell.epoch else { return read(cell) { self.readEnded(cell, $0) } }
        if world.mutant == .skipsClaim {
            return read(cell) { answer in self.claimed(cell) { self.readEnded(cell, answer) } }
        }
        claimed(cell) { self.read(cell) { self.readEnded(cell, $0) } }
    }

    private func claimed(_ cell: SimulatedCell, then goOn: @escaping () -> Void) {
        claim(cell) { error in
            guard let error else { return goOn() }
            let known = error.code == .staleEpoch ? ApusError(.moved) : error
            self.perform(cell, cell.machine.loadFailed(known))
        }
    }

    private func claim(_ cell: SimulatedCell, then completion: @escaping (ApusError?) -> Void) {
        do throws(ApusError) {
            commit([try ShardClaims.step(cell.address.shard, fence: fence(cell.epoch))]) { outcomes in
                if case .failure(let error)? = outcomes.first { return completion(error) }
                self.claimed[cell.address.shard] = cell.epoch
                self.handle(.claimed(cell.address.shard))
                completion(nil)
            }
        } catch {
            completion(error)
        }
    }

    private func read(_ cell: SimulatedCell, then completion: @escaping (StoredRecord??) -> Void) {
        let id = RecordID(world.collection.name, EntityCollection<SimulatedContent>.key(of: cell.address))
        world.records.request(by: process) {
            $0.record(id)
        } then: { (answer: StoredRecord??) in
            completion(answer)
            self.settle()
        }
    }

    private func readEnded(_ cell: SimulatedCell, _ answer: StoredRecord??) {
        if let answer {
            let stored = answer.flatMap { try? world.collection.stored($0) }
            loaded(cell, stored.map(EntityWorkload.Stored.init), version: answer?.version ?? 0)
        } else {
            perform(cell, cell.machine.loadFailed(unknown))
        }
    }

    private func keepRecord(_ state: Machine.State, _ earlier: [Reminder], _ cell: SimulatedCell) {
        var snapshot = EntitySnapshot(
            content: state.content, memory: state.memory, reminders: state.reminders, version: cell.version)
        snapshot.entries = state.entries
        if world.mutant == .deliversUnstored { completions.append { self.handle(.stored(state.entries)) } }
        do throws(ApusError) {
            let step = try world.collection.step(
                snapshot, of: cell.address, fence: fence(cell.epoch), earlier: earlier)
            let isEarly = world.mutant == .acknowledgesUnwritten
            if isEarly { completions.append { self.kept(cell, .confirmed(snapshot.version + 1)) } }
            var steps = [world.altered(step)]
            if world.mutant == .partsReminders || world.mutant == .partsOutbox, step.writes.count > 2 {
                steps = [RecordStep(Array(step.writes.prefix(2)))]
                let rest = RecordStep([step.writes[0]] + step.writes.dropFirst(2))
                later(17, after: world.simulation.span(0...30)) { self.commit([rest]) { _ in } }
            }
            commit(steps) { outcomes in
                let outcome = outcomes.first ?? .failure(ApusError(.internalFailure))
                if !isEarly { self.kept(cell, KeepOutcome(recorded: outcome)) }
            }
        } catch {
            completions.append { self.kept(cell, .lost(error)) }
        }
    }

    /// Makes steps with those of others.
    func commit(
        _ steps: [RecordStep], then completion: @escaping ([Result<[UInt64], ApusError>]) -> Void
    ) {
        let work = RecordWork(steps: steps, completion: completion)
        switch commits.submitted(work, stepCount: steps.count, byteCount: 0) {
        case .waits: break
        case .waitsForRun: completions.append { self.commitNext() }
        case .refused, .isClosed:
            completions.append { completion(steps.map { _ in .failure(ApusError(.overloaded)) }) }
        }
    }

    private func commitNext() {
        guard let batch = commits.nextCommit() else { return }
        let steps = batch.flatMap(\.steps)
        let world = world
        world.records.request(by: process) { tables in
            steps.map { world.make($0, &tables) }
        } then: { outcomes in
            self.committed(batch, outcomes)
            self.settle()
        }
    }

    private func committed(_ batch: [RecordWork], _ outcomes: [Result<[UInt64], ApusError>]?) {
        if var rest = outcomes?[...] {
            for work in batch {
                let mine = Array(rest.prefix(work.steps.count))
                rest = rest.dropFirst(work.steps.count)
                completions.append { work.completion(mine) }
            }
        } else {
            let error = world.mutant == .takesUnknownForRefused ? ApusError(.moved) : unknown
            for work in batch + commits.commitFailed() {
                completions.append { work.completion(work.steps.map { _ in .failure(error) }) }
            }
        }
        completions.append { self.commitNext() }
    }
}
