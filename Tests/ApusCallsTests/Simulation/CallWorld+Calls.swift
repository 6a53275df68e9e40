import ApusCalls
import ApusCore
import Foundation
import SwiftProtobuf

/// The owners of the calls.
extension CallWorld {
    mutating func start(_ call: Int, _ client: Int, _ claims: [CallClaimAnswer] = []) {
        guard !calls[call].isDown else { return }
        if !claims.isEmpty { calls[call].claimsAhead = [] }
        var actions: [CallAction] = []
        let at = now + calls[call].skew
        var start = starts[call]
        start.claims = altered(claims)
        let result = Self.result { () throws(ApusError) in
            try calls[call].machine.start(start, at: at, &actions)
        }
        if case .success = result { alter(call) }
        if actions.contains(where: { if case .ring = $0 { true } else { false } }) { counts.claimedAhead += 1 }
        start.claims = claims
        let input = CallInput(content: .start(start), at: at)
        hold(
            actions.map { .action($0) } + [.started(client: client, result)], (try? result.get()) == nil ? nil : input,
            call)
    }

    private static func result(_ body: () throws(ApusError) -> CallView) -> Result<CallView, ApusError> {
        do { return .success(try body()) } catch { return .failure(error) }
    }

    mutating func handle(_ event: CallEvent, of sender: CallSender, _ client: Int, _ call: Int) {
        guard !calls[call].isDown else { return }
        if mutant == .ignoresLateCancel, event == .cancelled, calls[call].machine.state.winner != 0 {
            return hold([.reply(client: client, event: event, .success(calls[call].machine.view(0)))], nil, call)
        }
        if mutant == .doublesLegs, event == .joined { addLeg(sender, call) }
        var actions: [CallAction] = []
        let at = now + calls[call].skew
        let before = calls[call].machine.state
        var result = Self.result { () throws(ApusError) in
            try calls[call].machine.handle(event, from: sender, at: at, &actions)
        }
        if event == .joined, case .success = result { counts.joined += 1 }
        if case .success(let view) = result, event == .accepted { result = .success(altered(view, call)) }
        if case .success = result { alter(call, event, before, &actions) }
        let input = (try? result.get()).map { _ in CallInput(content: .event(event, sender), at: at) }
        let outputs = actions.map { Output.action($0) } + [.reply(client: client, event: event, result)]
        let isConfirmation = actions.isEmpty && calls[call].machine.state.hasOnlyConfirmed(since: before)
        let isUnkept = mutant == .defersConnects && event == .connected
        hold(outputs, input, call, mayBeLost: isConfirmation || isUnkept)
    }

    mutating func happen(_ input: CallClusterEvent, _ call: Int) {
        guard !calls[call].isDown else { return }
        let event = altered(input, call)
        var actions: [CallAction] = []
        let at = now + calls[call].skew
        let before = calls[call].machine.state
        calls[call].machine.handle(event, at: at, &actions)
        alter(call, nil, before, &actions)
        let isConfirmation = actions.isEmpty && calls[call].machine.state.hasOnlyConfirmed(since: before)
        // A reminder is part of the state, so its delivery changes that.
        let isKept = event == .restored || event == .timeAdvanced
        hold(
            actions.map { .action($0) }, CallInput(content: .cluster(input), at: at), call,
            mayBeLost: isConfirmation && !isKept)
    }

    /// A client that is no leg sends an event, and learns nothing.
    mutating func intrude(_ event: CallEvent, _ call: Int) {
        guard !calls[call].isDown else { return }
        var sender = CallSender(.account(AccountID(unchecked: "mallory")), AccessID(unchecked: "mallory-1"))
        if mutant == .admitsOutsiders {
            sender = clients.first { $0.sender.party != starts[call].caller.party }?.sender ?? sender
        }
        var actions: [CallAction] = []
        let before = calls[call].machine.state
        do {
            _ = try calls[call].machine.handle(event, from: sender, at: now, &actions)
            violate("an outsider is admitted")
        } catch {
            let isKnown = error.code == .illegalRelation || error.code == .callUnknown
            if !isKnown { violate("an outsider receives \(error.code)") }
        }
        if before != calls[call].machine.state || !actions.isEmpty { violate("an outsider changes a call") }
    }

    // MARK: Confirmation

    /// - Parameter mayBeLost: the standby receives the change with the next one, and its outputs do not wait for that.
    private mutating func hold(_ outputs: [Output], _ input: CallInput?, _ call: Int, mayBeLost: Bool = false) {
        if mayBeLost {
            counts.deferredChanges += 1
            if let last = calls[call].held.indices.last {
                calls[call].held[last].outputs += outputs
                if let input { calls[call].held[last].inputs.append(input) }
            } else {
                if let input { calls[call].inputs.append(input) }
                for output in outputs { emit(output, call) }
            }
            if diesNow() { later(number(0...3), .killCall(call)) }
            return
        }
        let state: Data = (try? calls[call].machine.state.serializedBytes()) ?? Data()
        var outputs = outputs
        if mutant == .emitsUnconfirmed {
            for output in outputs { emit(output, call) }
            outputs = []
        }
        calls[call].held.append(
            Held(state: state, call: calls[call].machine, inputs: input.map { [$0] } ?? [], outputs: outputs))
        later(number(1...4), .confirmCall(call, incarnation: calls[call].incarnation))
        if diesNow() { later(number(0...3), .killCall(call)) }
    }

    mutating func confirm(_ call: Int, isSent: Bool = true) {
        let held = calls[call].held.removeFirst()
        calls[call].confirmed = held.state
        calls[call].inputs += held.inputs
        guard let machine = held.call else { return }
        calls[call].confirmedState = machine.state
        check(machine, call)
        if let next = machine.nextMs {
            let wakeAt = max(now, next - calls[call].skew) + (chance(0.1) ? number(0...3000) : number(0...20))
            if wakeAt < calls[call].wakeAt || calls[call].wakeAt < now {
                calls[call].wakeAt = wakeAt
                later(wakeAt - now, .wake(call))
            }
        }
        guard isSent else {
            counts.lostOutputs += 1
            // Nodes with media ask the call itself from time to time.
            let isRelease = held.outputs.contains { if case .action(.releaseChannels) = $0 { true } else { false } }
            if isRelease { channelsEnd(call) }
            return
        }
        for output in held.outputs { emit(output, call) }
    }

    private mutating func emit(_ output: Output, _ call: Int) {
        switch output {
        case .reply(let client, let event, let result):
            send(.reply(call: call, client: client, event: event, result))
        case .started(let client, let result): send(.started(call: call, client: client, result))
        case .answer, .claimedAhead: break
        case .action(let action): emit(action, call)
        }
    }

    private mutating func emit(_ action: CallAction, _ call: Int) {
        switch action {
        case .claim(let party, let claim):
            guard let index = parties.firstIndex(where: { $0.party == party }) else { return }
            send(.claim(call: call, party: index, claim), isInside: true)
        case .release(let party):
            guard let index = parties.firstIndex(where: { $0.party == party }) else { return }
            send(.release(call: call, party: index), isInside: true)
        case .ring(let leg), .stopRinging(let leg, _), .reportEnd(let leg, _):
            if case .ring = action, calls[call].numbers?[leg] != nil { violate("leg \(leg) is rung after the end") }
            notify(leg, action, call)
        case .reportRinging: notify(0, action, call)
        case .reportAccepted(let leg, _):
            if calls[call].numbers?[leg] != nil { violate("leg \(leg) may have media after the end") }
            calls[call].hasChannels = true
            notify(leg, action, call)
        case .releaseChannels: channelsEnd(call)
        case .writeRecord:
            if calls[call].endedAt == nil { violate("the record is written before the end") }
            calls[call].hasRecord = true
            send(.answer(call: call, .recordWritten), isInside: true)
        case .recordMessage(let isOver): record(isOver: isOver, call)
        }
    }

    private mutating func channelsEnd(_ call: Int) {
        if calls[call].endedAt == nil { violate("the channels are released before the end") }
        calls[call].hasChannels = false
    }

    /// The recorder stores the message when the call is over. It is full at any time.
    private mutating func record(isOver: Bool, _ call: Int) {
        let state = calls[call].confirmedState
        if starts[call].answering == nil { violate("a message is recorded, and nobody has an answering machine") }
        if state.winner != 0 { violate("a call that was accepted is recorded as a message") }
        guard isOver else {
            if !calls[call].isRecording, machineRandom.nextUnit() < 0.2 {
                later(Int64(machineRandom.next() % 30_000), .answer(call: call, .messageFull))
            }
            calls[call].isRecording = true
            return
        }
        if calls[call].endedAt == nil { violate("a message is stored before the end") }
        calls[call].hasMessage = true
        send(.answer(call: call, .messageStored), isInside: true)
    }

    private mutating func notify(_ leg: Int, _ action: CallAction, _ call: Int) {
        let state = calls[call].confirmedState
        guard state.legs.indices.contains(leg) else { return }
        let (party, endpoint) = (state.claims[Int(state.legs[leg].claim)].party, state.legs[leg].endpoint)
        guard
            let client = clients.firstIndex(where: {
                $0.sender.party == party && $0.sender.endpoint.rawValue == endpoint
            })
        else { return violate("leg \(leg) is no client") }
        send(.notice(call: call, client: client, action))
    }

    // MARK: Deaths

    mutating func kill(_ call: Int) {
        guard !calls[call].isDown else { return }
        counts.deaths += 1
        // The standby may have changes of which the former owner had sent nothing yet.
        let kept = calls[call].held.isEmpty ? 0 : Int(random.next() % UInt64(calls[call].held.count + 1))
        for _ in 0..<kept { confirm(call, isSent: false) }
        counts.lostChanges += calls[call].held.count
        calls[call].held = []
        calls[call].isDown = true
        calls[call].incarnation += 1
        later(number(50...300), .ownCall(call))
    }

    mutating func own(_ call: Int) {
        guard var state = try? CallState(serializedBytes: calls[call].confirmed) else {
            return violate("the state cannot be read")
        }
        alterRestored(&state)
        guard let machine = try? CallStateMachine(restoring: state, mutantConfiguration) else {
            return violate("the state cannot be restored")
        }
        (calls[call].machine, calls[call].isDown) = (machine, false)
        calls[call].skew = number(-50...50)
        happen(mutant == .forgetsNotices ? .timeAdvanced : .restored, call)
    }

    // MARK: Invariants

    /// Each confirmed state.
    private mutating func check(_ machine: CallStateMachine, _ call: Int) {
        let state = machine.state
        guard state.phase != .unspecified else { return }
        calls[call].isMade = true
        let flags = state.legs.indices.map { machine.view($0).flags }
        for (leg, old) in calls[call].flags.enumerated() where leg < flags.count && !flags[leg].includes(old) {
            violate("a flag of leg \(leg) goes back")
        }
        calls[call].flags = flags
        let byteCount = calls[call].confirmed.count
        counts.byteCountMax = max(counts.byteCountMax, byteCount)
        counts.legsMax = max(counts.legsMax, state.legs.count)
        if byteCount > state.extra.count + 64 + 160 * state.legs.count { violate("the state has \(byteCount) bytes") }
        if state.legs.count > configuration.legsMax + 1 { violate("the call has too many legs") }
        let endpoints = Set(state.legs.map(\.endpoint))
        if endpoints.count != state.legs.count { violate("an endpoint has two legs") }
        var numbers = calls[call].numbers ?? []
        let ends = state.legs.indices.map { machine.view($0).end?.number }
        for (leg, number) in ends.enumerated()
        where leg < numbers.count && numbers[leg] != nil && number != numbers[leg] {
            violate("the end of leg \(leg) changes from \(Self.text(numbers)) to \(Self.text(ends))")
        }
        numbers = ends
        calls[call].numbers = numbers
        if state.phase == .ended, calls[call].endedAt == nil {
            calls[call].endedAt = now
            counts.ended += 1
            if numbers.contains(nil) { violate("a leg goes on after the end of its call") }
        }
        for leg in ends.indices {
            if leg >= calls[call].endTimes.count { calls[call].endTimes.append(nil) }
            if ends[leg] != nil, calls[call].endTimes[leg] == nil { calls[call].endTimes[leg] = now }
        }
        checkTimes(state, call)
        checkParties(call)
    }

    /// The parties that a call keeps busy: whom it rings or connects, and its caller meanwhile.
    private func activeParties(_ call: Int) -> [CallParty] {
        let state = calls[call].confirmedState
        guard state.phase != .ended, state.phase != .unspecified else { return [] }
        let legs = state.legs.dropFirst().filter { $0.status != .waiting && $0.status != .ended }
        guard !legs.isEmpty else { return [] }
        return [state.claims[0].party] + legs.map { state.claims[Int($0.claim)].party }
    }

    private mutating func checkParties(_ call: Int) {
        let own = activeParties(call)
        for other in calls.indices where other != call {
            for party in activeParties(other) where own.contains(party) { violate("\(party.id) is on two calls") }
        }
        for call in calls.indices where calls[call].confirmedState.phase == .recording {
            let caller = starts[call].caller.party
            guard calls.indices.contains(where: { $0 != call && activeParties($0).contains(caller) }) else {
                calls[call].takenAt = nil
                continue
            }
            // Until the call hears of it, at the latest when it renews its claim.
            if now > (calls[call].takenAt ?? now) + 30_000 { violate("\(caller.id) leaves a message during a call") }
            calls[call].takenAt = calls[call].takenAt ?? now
        }
    }

    /// No call lasts longer than its bounds, with some time for late reminders, deaths and clocks.
    private mutating func checkTimes(_ state: CallState, _ call: Int) {
        guard state.phase != .ended else { return }
        let slack: Int64 = 5000
        func over(_ start: Int64, _ bound: Duration) -> Bool { now > start + Int64(bound.milliseconds) + slack }
        if state.phase == .recording {
            if over(state.messageMs, .milliseconds(state.answering.lengthMs)) { violate("a message is too long") }
        } else if state.winner == 0, over(state.startedMs, starts[call].timeout ?? configuration.ringTime) {
            violate("a call rings for too long")
        }
        if state.winner != 0, over(state.acceptedMs, configuration.durationMax) { violate("a call lasts too long") }
        if state.phase == .accepted, over(state.acceptedMs, configuration.connectTime) {
            violate("a call waits too long for media")
        }
        for (leg, entry) in state.legs.enumerated() where entry.lostMs != 0 && entry.status != .ended {
            let isPart = leg == 0 || leg == Int(state.winner)
            if isPart || !entry.byPush, over(entry.lostMs, configuration.grace) {
                violate("leg \(leg) is lost for too long")
            }
        }
    }

    /// When nothing is left to do.
    mutating func checkEnd() {
        for index in calls.indices {
            let call = calls[index]
            guard call.isMade else { continue }
            if call.confirmedState.phase != .unspecified { violate("call \(index) is not forgotten") }
            let model = CallModel(call.inputs, configuration)
            if let numbers = call.numbers, numbers != model.numbers {
                violate(
                    "call \(index) ends with \(Self.text(numbers)), and the model with \(Self.text(model.numbers))"
                )
            }
            if !call.hasRecord { violate("call \(index) has no record") }
            if call.hasMessage { counts.messages += 1 }
            if call.hasMessage != model.hasMessage { violate("call \(index) has a message: \(call.hasMessage)") }
            if call.hasChannels { violate("call \(index) keeps its channels") }
            let winners = clients.indices.filter {
                clients[$0].parts[index].hasAccepted && clients[$0].sender.party != starts[index].caller.party
            }
            if winners.count > 1 { violate("call \(index) has the winners \(winners)") }
            if let winner = model.winner {
                counts.accepted += 1; checkWinner(winner, winners, index)
            } else if !winners.isEmpty {
                violate("call \(index) has a winner that the model does not have")
            }
        }
        for party in parties where party.machine.isOnCalling(at: now) {
            // A claim of which no call knows expires.
            let claim = party.machine.state.claim
            let isExpiring = calls.contains { $0.id.rawValue == claim.call && $0.claimsAhead.contains(claim.untilMs) }
            if !isExpiring { violate("a party is on a call for ever") }
        }
        for client in clients.indices { checkClient(client) }
        checkCrossing()
    }

    private static func text(_ numbers: [Int32?]) -> String {
        numbers.map { number in number.map { "\($0)" } ?? "-" }.joined(separator: " ")
    }

    /// The caller and the winner know each other.
    private mutating func checkWinner(_ winner: Int, _ winners: [Int], _ call: Int) {
        for client in winners where clients[client].parts[call].leg != winner {
            violate("call \(call) is won by leg \(winner), and client \(client) believes that it has won")
        }
        let caller = clients.firstIndex { $0.sender.endpoint == starts[call].caller.endpoint }
        if let caller, let peer = clients[caller].parts[call].grantedPeer, peer != winner {
            violate("the caller talks to \(peer), and \(winner) has won")
        }
    }

    /// Of two calls between two parties that cross, one goes on.
    private mutating func checkCrossing() {
        guard calls.count == 2, calls.allSatisfy(\.isMade) else { return }
        let callers = starts.map(\.caller.party)
        let isCrossing = (0..<2).allSatisfy { index in
            starts[index].targets.allSatisfy { $0.party == callers[1 - index] }
        }
        let isRefused = calls.allSatisfy { [-2511, -2520].contains($0.numbers?.first ?? 0) }
        let isByClient = calls.contains { call in
            call.inputs.contains { if case .event(.wasBusy, _) = $0.content { true } else { false } }
        }
        if isCrossing, isRefused, !isByClient { violate("two calls that cross refuse each other") }
    }
}
