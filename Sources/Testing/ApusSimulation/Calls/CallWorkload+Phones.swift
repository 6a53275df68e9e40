import ApusCalls
import ApusCluster
import ApusCore
import SwiftProtobuf

/// The clients: their connections, and what they do in calls.
extension CallWorkload {
    /// The answer to a client.
    enum Answer<Reply> {
        case reply(Reply)
        case error(ApusError)
        /// It is unknown whether the request was carried out.
        case none
    }

    func begin() {
        for phone in phones {
            later(after: simulation.span(300...600)) { self.connect(phone) }
            later(after: simulation.span(700...1000)) { self.look(phone) }
        }
        later(after: simulation.span(700...900)) { self.callSomebody() }
    }

    /// Asks an entity by way of a client's node.
    private func ask<M: EntityMessage>(
        _ message: M, _ address: EntityAddress, at node: EntityNode,
        then completion: @escaping (Answer<M.Reply>) -> Void
    ) {
        guard let bytes: [UInt8] = try? message.serializedBytes() else { return }
        let call = SimulatedCall(entity: address, number: 0, operation: .message(M.method, bytes), origin: .tell)
        let timeout = simulation.span(300...900)
        var ask: Int?
        ask = world.asks.begin(call, at: node, until: simulation.now + timeout) { outcome in
            guard ask != nil else { return }
            ask = nil
            switch outcome {
            case .answered(let bytes, _):
                completion((try? M.Reply(serializedBytes: bytes)).map { .reply($0) } ?? .none)
            case .threw(let error): completion(error.map { .error($0) } ?? .none)
            case .refused: completion(.none)
            }
        }
        later(after: timeout) {
            guard let number = ask else { return }
            ask = nil
            self.world.asks.end(number)
            completion(.none)
        }
    }

    // MARK: Connections

    private func connect(_ phone: SimulatedPhone) {
        guard !phone.isGone, phone.node == nil else { return }
        guard let node = world.anyNode() else { return later(after: simulation.span(20...60)) { self.connect(phone) } }
        (phone.node, phone.number, phone.session) = (node, simulation.random.next() | 1, 0)
        phone.connectedMs = wallMilliseconds
        tell("\(phone.endpoint) connects to \(node.id)")
        announce(phone, phone.number)
    }

    private func announce(_ phone: SimulatedPhone, _ number: UInt64) {
        guard let node = phone.node, phone.number == number else { return }
        let address = phone.party.address
        phone.announcedUnder = node.process.view[address.shard].epoch
        let listener = Self.listener(number, phone.endpoint.rawValue, node)
        ask(CallListen.with { $0.listener = listener }, address, at: node) { answer in
            guard phone.number == number, phone.node === node else { return }
            if case .reply(let listening) = answer {
                phone.session = listening.session
            } else {
                self.later(after: self.simulation.span(100...300)) { self.announce(phone, number) }
            }
        }
    }

    /// A connection is announced again when its party has another owner.
    func adopted(_ node: EntityNode) {
        for phone in phones where phone.node === node {
            let epoch = node.process.view[phone.party.address.shard].epoch
            guard epoch != phone.announcedUnder else { continue }
            phone.announcedUnder = epoch
            let number = phone.number
            later(after: simulation.span(0...5)) { self.announce(phone, number) }
        }
    }

    func stopped(_ node: EntityNode) {
        for phone in phones where phone.node === node {
            (phone.node, phone.session) = (nil, 0)
            // Most of them late, so that enough clients are left.
            let isLate = simulation.profile == .kills ? simulation.killCount > 8 : simulation.now.nanoseconds > 6 << 30
            phone.isGone = !simulation.isHealed && simulation.chance(isLate ? 0.3 : 0.02)
            if phone.isGone { tell("\(phone.endpoint) never comes back") }
            later(after: simulation.span(50...1500)) { self.connect(phone) }
        }
    }

    private func leave(_ phone: SimulatedPhone) {
        guard let node = phone.node else { return }
        tell("\(phone.endpoint) disconnects")
        let listener = Self.listener(phone.number, phone.endpoint.rawValue, node)
        tell(phone.party.address, CallLeave.with { $0.listener = listener }, from: node)
        (phone.node, phone.session) = (nil, 0)
        later(after: simulation.span(20...2500)) { self.connect(phone) }
    }

    /// What a client does from time to time.
    private func look(_ phone: SimulatedPhone) {
        guard !phone.isGone else { return }
        later(after: simulation.span(200...400)) { self.look(phone) }
        if !simulation.isHealed, phone.isListening, simulation.chance(0.02) { return leave(phone) }
        for call in phone.active {
            guard let part = phone.parts[call] else { continue }
            if simulation.isHealed, part.hasAccepted, !isPeerGone(of: phone, call), simulation.chance(0.4) {
                report(.hungUp, phone, call)
            }
            // Its node asks whether the call goes on. It does not learn of a loss otherwise.
            let silence = wallMilliseconds - part.changedMs
            let wasAway = phone.connectedMs > part.changedMs && silence > 18_500
            let mayBeLost = silence > 2000 && mayHaveLost([calls[call].address.shard, phone.party.address.shard])
            if wasAway || mayBeLost { report(.confirmed, phone, call) }
        }
    }

    private func isPeerGone(of phone: SimulatedPhone, _ call: Int) -> Bool {
        guard let state = calls[call].confirmed, state.winner != 0 else { return false }
        let endpoints = [state.legs[0].endpoint, state.legs[Int(state.winner)].endpoint]
        return phones.contains { $0 !== phone && $0.isGone && endpoints.contains($0.endpoint.rawValue) }
    }

    // MARK: Callers

    private func callSomebody() {
        guard !simulation.isHealed else { return }
        later(after: simulation.span(40...250)) { self.callSomebody() }
        let busy = Set(phones.filter { !$0.active.isEmpty }.map(\.party))
        let idle = phones.filter { $0.isListening && !busy.contains($0.party) }
        guard !idle.isEmpty else { return }
        let phone = idle[simulation.below(idle.count)]
        let type: CallType = [.oneToOne, .oneToOne, .oneToMany, .oneToManySpecial][simulation.below(4)]
        var others = parties.filter { $0 != phone.party }
        let count = type == .oneToOne ? 1 : 1 + simulation.below(3)
        while others.count > count { others.remove(at: simulation.below(others.count)) }
        place(type, from: phone, to: others)
        // The called party calls at the same time.
        let crossing = phones.first { $0.party == others[0] && $0.isListening && $0.active.isEmpty }
        guard type == .oneToOne, simulation.chance(0.15), let crossing else { return }
        later(after: simulation.span(0...10)) { self.place(.oneToOne, from: crossing, to: [phone.party]) }
    }

    /// - Returns: the number of the call.
    @discardableResult
    func place(_ type: CallType, from phone: SimulatedPhone, to called: [CallParty], isProbe: Bool = false) -> Int {
        let address = called[0].address
        let id = CallID(shard: address.shard, RequestID(using: &simulation.random))
        let timeout = Int64(1000 + simulation.below(5000))
        let place = CallPlace.with {
            ($0.type, $0.caller, $0.endpoint, $0.session) = (type, phone.party, phone.endpoint.rawValue, phone.session)
            $0.timeoutMs = timeout
            $0.callees = phones.filter { called.contains($0.party) }.map { phone in
                .with {
                    ($0.party, $0.endpoint) = (phone.party, phone.endpoint.rawValue)
                    $0.byPush = phone.party.kind == .account && !isProbe
                }
            }
        }
        let entity = EntityAddress(kind: .calls, key: id.rawValue, shard: address.shard)
        let call = add(
            SimulatedPhoneCall(
                id: id, address: entity, place: place, isProbe: isProbe, isClaimedAhead: simulation.chance(0.5)))
        phone.parts[call] = SimulatedPhone.Part(isCaller: true, changedMs: wallMilliseconds)
        tell("\(phone.endpoint) calls \(called.map(\.id)) in shard \(address.shard), call \(call)")
        start(call, phone)
        return call
    }

    private func start(_ call: Int, _ phone: SimulatedPhone) {
        guard !phone.isGone, phone.parts[call]?.end == nil, !calls[call].isAcknowledged else { return }
        guard let node = phone.node, phone.isListening else {
            return later(after: simulation.span(50...200)) { self.start(call, phone) }
        }
        guard calls[call].isClaimedAhead else { return place(call, phone, node, []) }
        claimAhead(call, phone, node, [])
    }

    /// Claims the next party, as the node of the call's owner does, and places the call when all have answered.
    private func claimAhead(
        _ call: Int, _ phone: SimulatedPhone, _ node: EntityNode, _ answers: [CallClaimAnswer]
    ) {
        let place = calls[call].place
        var inOrder = [place.caller]
        for callee in place.callees where !inOrder.contains(callee.party) { inOrder.append(callee.party) }
        guard answers.count < inOrder.count, answers.first?.granted ?? true else {
            return self.place(call, phone, node, answers)
        }
        let claim = CallPartyClaim.with {
            ($0.call, $0.isCaller) = (calls[call].id.rawValue, answers.isEmpty)
            $0.untilMs = wallMilliseconds + Int64(configuration.claimTime.milliseconds) / 2
            if inOrder.count == 2 { $0.peer = inOrder[1 - answers.count] }
        }
        ask(CallClaimAhead.with { $0.claim = claim }, inOrder[answers.count].address, at: node) { answer in
            // Its node has died, which ends the request.
            guard phone.node === node else { return self.start(call, phone) }
            guard case .reply(let claimed) = answer else { return self.place(call, phone, node, answers) }
            self.claimAhead(call, phone, node, answers + [claimed])
        }
    }

    private func place(_ call: Int, _ phone: SimulatedPhone, _ node: EntityNode, _ claims: [CallClaimAnswer]) {
        var place = calls[call].place
        place.claims = claims
        ask(place, calls[call].address, at: node) { answer in
            switch answer {
            case .reply(let view):
                let isFirst = !self.calls[call].isAcknowledged
                self.calls[call].isAcknowledged = true
                self.see(view, phone, call)
                guard isFirst, !self.calls[call].isProbe, self.simulation.chance(0.15) else { return }
                self.later(after: self.simulation.span(0...2500)) { self.report(.cancelled, phone, call) }
            case .error(let error): self.learn(error.code.number, phone, call)
            case .none: self.later(after: self.simulation.span(5...60)) { self.start(call, phone) }
            }
        }
    }

    // MARK: Reports

    /// Reports an event, until it is answered.
    func report(_ kind: CallEventKind, _ phone: SimulatedPhone, _ call: Int, stage: CallStage = .unspecified) {
        let report = SimulatedPhone.Report(kind: kind, stage: stage)
        let isOver = phone.parts[call]?.end != nil
        guard !isOver || stage == .ended, phone.parts[call]?.waiting.insert(report).inserted == true else { return }
        send(report, phone, call)
    }

    private func send(_ report: SimulatedPhone.Report, _ phone: SimulatedPhone, _ call: Int) {
        guard !phone.isGone, phone.parts[call]?.waiting.contains(report) == true else { return }
        guard let node = phone.node, phone.isListening else {
            return later(after: simulation.span(50...200)) { self.send(report, phone, call) }
        }
        let message = CallReport.with {
            ($0.party, $0.endpoint, $0.session) = (phone.party, phone.endpoint.rawValue, phone.session)
            ($0.kind, $0.stage) = (report.kind, report.stage)
        }
        ask(message, calls[call].address, at: node) { answer in
            switch answer {
            case .reply(let view):
                guard phone.parts[call]?.waiting.remove(report) != nil else { return }
                if report.kind == .accepted, view.accepted, !view.ended { self.sawWinner(phone.party, call) }
                self.see(view, phone, call)
            case .error(let error):
                guard phone.parts[call]?.waiting.remove(report) != nil else { return }
                if error.code == .callUnknown || report.kind == .joined { self.learn(error.code.number, phone, call) }
            case .none: self.later(after: self.simulation.span(5...60)) { self.send(report, phone, call) }
            }
        }
    }

    private func see(_ view: CallLegView, _ phone: SimulatedPhone, _ call: Int) {
        phone.parts[call]?.changedMs = wallMilliseconds
        if view.ended {
            learn(view.number, phone, call)
        } else if view.accepted {
            accepted(phone, call)
        }
    }

    // MARK: Notices

    func notice(_ notice: CallNotice, to phone: SimulatedPhone) {
        guard let call = index(of: notice.call), !notice.mediaEnded else { return }
        phone.parts[call]?.changedMs = wallMilliseconds
        switch notice.stage {
        case .ring where !notice.isCaller: ring(notice, phone, call)
        case .ring: report(.confirmed, phone, call, stage: .ring)
        case .accepted:
            if phone.parts[call]?.end == nil {
                sawWinner(notice.isCaller ? notice.peer : phone.party, call)
                accepted(phone, call)
            }
            report(.confirmed, phone, call, stage: .accepted)
        case .ended:
            learn(notice.number, phone, call)
            report(.confirmed, phone, call, stage: .ended)
        case .unspecified, .UNRECOGNIZED: fail("\(phone.endpoint) receives a notice of no stage")
        }
    }

    private func ring(_ notice: CallNotice, _ phone: SimulatedPhone, _ call: Int) {
        calls[call].seen.called.insert(phone.endpoint.rawValue)
        let part = phone.parts[call] ?? SimulatedPhone.Part(changedMs: wallMilliseconds)
        phone.parts[call] = part
        guard part.end == nil else { return report(.confirmed, phone, call, stage: .ended) }
        guard !part.isRinging, !part.hasAccepted else { return report(.rang, phone, call) }
        let isBusy = phone.active.contains { $0 != call && !isCrossed($0, by: call, of: phone) }
        guard !isBusy else { return report(.busy, phone, call) }
        checkRing(notice, phone, call)
        phone.parts[call]?.isRinging = true
        tell("\(phone.endpoint) rings in call \(call)")
        report(.rang, phone, call)
        // Nobody rings afterwards.
        later(after: .milliseconds(max(0, notice.ringEndMs - wallMilliseconds) + 1000)) {
            phone.parts[call]?.isRinging = false
        }
        if calls[call].isProbe { calls[call].hasRung = true }
        let kind: CallEventKind
        switch calls[call].isProbe ? 0 : simulation.below(20) {
        case 0..<11: kind = .accepted
        case 11..<14: kind = .rejected
        case 14: kind = .hungUp
        default: return
        }
        let delay = calls[call].isProbe ? simulation.span(0...30) : simulation.span(0...1200)
        later(after: delay) {
            if phone.parts[call]?.isRinging == true { self.report(kind, phone, call) }
        }
    }

    /// The phone's own call, which crosses this one, does not make it busy.
    private func isCrossed(_ own: Int, by call: Int, of phone: SimulatedPhone) -> Bool {
        guard let part = phone.parts[own], part.isCaller, !part.hasAccepted else { return false }
        return areCrossing(own, call) && calls[call].id < calls[own].id
    }

    func areCrossing(_ one: Int, _ other: Int) -> Bool {
        let (one, other) = (calls[one].place, calls[other].place)
        return one.callees.allSatisfy { $0.party == other.caller }
            && other.callees.allSatisfy { $0.party == one.caller }
    }

    private func accepted(_ phone: SimulatedPhone, _ call: Int) {
        guard phone.parts[call]?.end == nil, phone.parts[call]?.hasAccepted == false else { return }
        phone.parts[call]?.isRinging = false
        phone.parts[call]?.hasAccepted = true
        tell("\(phone.endpoint) talks in call \(call)")
        later(after: simulation.span(0...300)) { self.report(.connected, phone, call) }
        if calls[call].isProbe || simulation.chance(0.5) {
            let delay = calls[call].isProbe ? simulation.span(0...50) : simulation.span(0...4000)
            later(after: delay) { self.report(.hungUp, phone, call) }
        }
    }

    /// The client learns that the call is over for it.
    private func learn(_ number: Int32, _ phone: SimulatedPhone, _ call: Int) {
        guard phone.parts[call]?.end == nil else { return }
        var part = phone.parts[call] ?? SimulatedPhone.Part()
        (part.end, part.isRinging, part.waiting) = (number, false, [])
        part.changedMs = wallMilliseconds
        phone.parts[call] = part
        tell("\(phone.endpoint) learns \(number) of call \(call)")
        guard number != ErrorCode.callUnknown.number else { return checkUnknown(phone, call) }
        calls[call].seen.ends[phone.endpoint.rawValue] = number
    }

    /// A push reaches an app, which asks what to do.
    func pushed(_ push: CallPush) {
        guard let call = index(of: push.call),
            let phone = phones.first(where: { $0.endpoint.rawValue == push.endpoint })
        else { return }
        calls[call].pushed.insert(push.endpoint)
        guard !phone.isGone, phone.parts[call] == nil else { return }
        phone.parts[call] = SimulatedPhone.Part(changedMs: wallMilliseconds)
        report(.joined, phone, call)
    }
}
