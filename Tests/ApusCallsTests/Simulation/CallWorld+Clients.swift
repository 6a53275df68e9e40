import ApusCalls
import ApusCore
import Foundation
import SwiftProtobuf

/// An app or a device, with what it will do.
struct SimulatedClient {
    /// What the client has seen of one call.
    struct Part {
        /// Nil until the client has had a notice or an answer.
        var leg: Int?
        var isRinging = false
        var hasAccepted = false
        var grantedPeer: Int?
        /// Ends that the client has learned. A client tells repetitions, so there is at most one.
        var ends: [Int32] = []
        var endedAt: Int64?
        /// Requests without an answer.
        var waiting: [CallEvent] = []
        var isConnecting = false
        /// Since when the client can be expected to receive notices.
        var isFreshAt: Int64 = 0

        var isActive: Bool { ends.isEmpty && (isRinging || hasAccepted || leg == 0) }
    }

    var sender: CallSender
    var session: UInt64 = 1
    var isDead = false
    var parts: [Part] = []
}

/// The clients, as a client library behaves: it repeats requests, and each notice has its effect once.
extension CallWorld {
    mutating func makeClients() {
        for number in 0..<7 {
            let isAccount = number < 3
            let name = isAccount ? "account-\(number)" : "bell-\(number)"
            let party: CallParty =
                isAccount ? .account(AccountID(unchecked: name)) : .device(DeviceID(unchecked: name))
            guard let machine = try? PartyStateMachine(restoring: CallPartyState(), configuration) else { return }
            parties.append(PartyEntity(party: party, machine: machine))
            for endpoint in 0..<(isAccount && chance(0.4) ? 2 : 1) {
                clients.append(SimulatedClient(sender: CallSender(party, AccessID(unchecked: "\(name)-\(endpoint)"))))
            }
        }
    }

    mutating func makeCalls(_ type: CallType) {
        let callCount = [1, 1, 1, 2, 2, 3][Int(random.next() % 6)]
        let isCrossing = callCount == 2 && chance(0.8)
        for index in 0..<callCount {
            let id = CallID(unchecked: "call-\(random.next() % 1000)-\(index)")
            var callType = index == 0 ? type : [.oneToOne, .oneToMany, .oneToManySpecial][Int(random.next() % 3)]
            let caller = Int(random.next() % UInt64(clients.count))
            var called = partyNumbers(type: callType, except: clients[caller].sender.party)
            var callerSender = clients[caller].sender
            if isCrossing, index == 1 {
                let first = starts[0]
                guard let other = clients.first(where: { $0.sender.party == first.targets[0].party }) else { return }
                callerSender = other.sender
                callType = .oneToOne
                called = [parties.firstIndex { $0.party == first.caller.party } ?? 0]
            }
            let delay = index == 0 ? 1 : isCrossing ? number(1...6) : number(1...100_000)
            // The called party calls back while a message is left for it, or before.
            let isLate = isCrossing && index == 1 && starts[0].answering != nil && machineRandom.nextUnit() < 0.7
            makeCall(
                id, callType, from: callerSender, to: called,
                at: isLate ? Int64(machineRandom.next() % 60_000) : delay)
        }
        for client in clients.indices {
            clients[client].parts = Array(repeating: SimulatedClient.Part(), count: calls.count)
            guard chance(0.15) else { continue }
            later(number(1...60_000), .die(client: client))
        }
        plannedDeaths = Int(random.next() % 4)
        let deaths = Int(random.next() % 3)
        for _ in 0..<deaths {
            let at = chance(0.7) ? number(1...10_000) : number(1...100_000)
            if chance(0.7) {
                later(at, .killCall(Int(random.next() % UInt64(calls.count))))
            } else {
                later(at, .killParty(Int(random.next() % UInt64(parties.count))))
            }
        }
    }

    private mutating func partyNumbers(type: CallType, except own: CallParty) -> [Int] {
        var numbers = parties.indices.filter { parties[$0].party != own }
        let count = type == .oneToOne ? 1 : Int(random.next() % 5) + 1
        while numbers.count > count { numbers.remove(at: Int(random.next() % UInt64(numbers.count))) }
        return numbers
    }

    private mutating func makeCall(
        _ id: CallID, _ type: CallType, from caller: CallSender, to called: [Int], at delay: Int64
    ) {
        // An app that is not among the legs may join after a push.
        var targets = called.flatMap { number in clients.filter { $0.sender.party == parties[number].party } }
            .filter { $0.sender.endpoint.rawValue.hasSuffix("0") || !chance(0.3) }
            .map { CallTarget($0.sender.party, $0.sender.endpoint, hasPush: $0.sender.party.kind == .account) }
        guard let extra = try? CallExtra(Data((chance(0.3) ? #"{"keepConnect":true}"# : "").utf8)) else { return }
        let timeout: Duration? = chance(0.5) ? .seconds(number(5...60)) : nil
        let machine = machine(of: called)
        if let machine, machineRandom.nextUnit() < 0.2 {
            // No client of this party is there.
            targets.removeAll { $0.party == machine.party }
            targets.append(CallTarget(machine.party, AccessID(unchecked: "absent"), isAbsent: true))
        }
        starts.append(
            CallStart(id, type, from: caller, to: targets, timeout: timeout, extra: extra, answering: machine))
        calls.append(CallEntity(id: id, machine: CallStateMachine(mutantConfiguration)))
        let call = calls.count - 1
        later(delay, .retryStart(call: call, tries: 0))
        for client in clients.indices
        where called.contains(where: { parties[$0].party == clients[client].sender.party }) {
            let isLeg = targets.contains { $0.endpoint == clients[client].sender.endpoint }
            if !isLeg, chance(0.7) {
                later(delay + number(1...20_000), .act(client: client, call: call, .joined))
            }
        }
        if chance(0.3) {
            later(
                delay + number(1...20_000),
                .outsider(call: call, event: [.accepted, .hungUp, .cancelled, .joined][call % 4]))
        }
    }

    /// Some called parties have an answering machine, of which some answer before the time-out.
    private mutating func machine(of called: [Int]) -> CallAnswering? {
        guard machineRandom.nextUnit() < 0.3 else { return nil }
        let (party, after, length) = (machineRandom.next(), machineRandom.next(), machineRandom.next())
        return .with {
            $0.party = parties[called[Int(party % UInt64(called.count))]].party
            $0.afterMs = after % 3 == 0 ? Int64(after % 30_000) : 0
            $0.lengthMs = 5000 + Int64(length % 60_000)
        }
    }

    private func caller(of call: Int) -> Int {
        clients.firstIndex {
            $0.sender.party == starts[call].caller.party && $0.sender.endpoint == starts[call].caller.endpoint
        } ?? 0
    }

    // MARK: Requests

    mutating func retryStart(_ call: Int, _ tries: Int) {
        let client = caller(of: call)
        let part = clients[client].parts[call]
        guard !clients[client].isDead, part.leg == nil, part.ends.isEmpty, tries < 20 else { return }
        if tries == 0 {
            clients[client].parts[call].isFreshAt = now
            if chance(0.25) { later(number(1...40_000), .act(client: client, call: call, .cancelled)) }
            if chance(0.05) { later(number(1...40_000), .act(client: client, call: call, .failed(-2571))) }
        }
        send(.start(call: call, client: client))
        later(1000, .retryStart(call: call, tries: tries + 1))
    }

    mutating func started(_ result: Result<CallView, ApusError>, _ call: Int, _ client: Int) {
        guard !clients[client].isDead, clients[client].parts[call].leg == nil else { return }
        switch result {
        case .success(let view): see(view, call, client)
        case .failure(let error): learn(error.code.number, call, client)
        }
    }

    /// The client does something, and repeats its request until it is answered.
    mutating func act(_ client: Int, _ call: Int, _ event: CallEvent) {
        let part = clients[client].parts[call]
        guard !clients[client].isDead, part.ends.isEmpty, !part.waiting.contains(event) else { return }
        if event == .accepted || event == .rejected, !part.isRinging { return }
        clients[client].parts[call].waiting.append(event)
        retry(client, call, event, 0)
    }

    mutating func retry(_ client: Int, _ call: Int, _ event: CallEvent, _ tries: Int) {
        guard !clients[client].isDead, clients[client].parts[call].waiting.contains(event), tries < 40 else { return }
        send(.request(call: call, client: client, event: event, session: clients[client].session))
        later(tries < 5 ? 1000 : 5000, .retry(client: client, call: call, event, tries: tries + 1))
    }

    mutating func reply(_ result: Result<CallView, ApusError>, to event: CallEvent, _ call: Int, _ client: Int) {
        guard !clients[client].isDead else { return }
        clients[client].parts[call].waiting.removeAll { $0 == event }
        switch result {
        case .success(let view):
            // Its edge reports sessions. A client learns nothing from the answer.
            guard event != .sessionStarted, event != .sessionEnded else { return }
            see(view, call, client)
            let isOwn = event == .hungUp || event == .cancelled || event == .rejected
            if isOwn, view.end == nil, clients[client].parts[call].ends.isEmpty {
                violate("\(event) of a leg does not end it")
            }
        case .failure(let error):
            // 8003 is the answer to a join of an account that is not called any more.
            if error.code == .callUnknown || event == .joined, clients[client].parts[call].leg != nil {
                learn(error.code.number, call, client)
            }
        }
    }

    private mutating func see(_ view: CallView, _ call: Int, _ client: Int) {
        clients[client].parts[call].leg = view.leg
        if let end = view.end {
            learn(end.number, call, client)
        } else if view.flags.accepted {
            accepted(call, client)
        }
    }

    // MARK: Notices

    mutating func notice(_ action: CallAction, _ call: Int, _ client: Int) {
        guard !clients[client].isDead else { return }
        switch action {
        case .ring(let leg): ring(leg, call, client)
        case .reportRinging: confirm(.ring, call, client)
        case .reportAccepted(let leg, let peer):
            clients[client].parts[call].leg = leg
            if clients[client].parts[call].ends.isEmpty {
                if let earlier = clients[client].parts[call].grantedPeer, earlier != peer {
                    violate("the peer changes")
                }
                clients[client].parts[call].grantedPeer = peer
                accepted(call, client)
            }
            confirm(.accepted, call, client)
        case .stopRinging(let leg, let end), .reportEnd(let leg, let end):
            clients[client].parts[call].leg = leg
            learn(end.number, call, client)
            confirm(.ended, call, client)
        case .claim, .release, .releaseChannels, .writeRecord, .recordMessage: break
        }
    }

    private mutating func confirm(_ stage: CallStage, _ call: Int, _ client: Int) {
        send(.request(call: call, client: client, event: .confirmed(stage), session: clients[client].session))
    }

    private mutating func ring(_ leg: Int, _ call: Int, _ client: Int) {
        let part = clients[client].parts[call]
        guard part.ends.isEmpty else { return confirm(.ended, call, client) }
        clients[client].parts[call].leg = leg
        guard !part.isRinging, !part.hasAccepted else {
            send(.request(call: call, client: client, event: .rang, session: clients[client].session))
            return
        }
        guard !isBusy(client, for: call) else {
            act(client, call, .wasBusy)
            return
        }
        if let end = calls[call].endTimes.count > leg ? calls[call].endTimes[leg] : nil {
            counts.late += 1
            if now > end + 10_000 { violate("client \(client) rings long after the end") }
        }
        clients[client].parts[call].isRinging = true
        clients[client].parts[call].isFreshAt = now
        act(client, call, .rang)
        let delay = chance(0.3) ? number(1...200) : number(1...40_000)
        switch random.next() % 20 {
        case 0..<9: later(delay, .act(client: client, call: call, .accepted))
        case 9..<13: later(delay, .act(client: client, call: call, .rejected))
        case 13: later(delay, .act(client: client, call: call, .wasBusy))
        case 14: later(delay, .act(client: client, call: call, .failed(-2570)))
        case 15: later(delay, .act(client: client, call: call, .hungUp))
        default: break
        }
    }

    /// The client is on another call. Its own call that crosses this one, and has the greater id, does not count.
    private func isBusy(_ client: Int, for call: Int) -> Bool {
        clients[client].parts.indices.contains { other in
            let part = clients[client].parts[other]
            let (own, ringing) = (starts[other], starts[call])
            let isCrossing =
                part.leg == 0 && (!part.hasAccepted || part.grantedPeer == 0)
                && own.targets.allSatisfy { $0.party == ringing.caller.party }
                && ringing.targets.allSatisfy { $0.party == own.caller.party } && ringing.id < own.id
            return part.isActive && !isCrossing
        }
    }

    private mutating func accepted(_ call: Int, _ client: Int) {
        guard !clients[client].parts[call].hasAccepted else { return }
        clients[client].parts[call].isRinging = false
        clients[client].parts[call].hasAccepted = true
        clients[client].parts[call].isFreshAt = now
        if chance(0.95) { later(number(1...3000), .act(client: client, call: call, .connected)) }
        switch random.next() % 10 {
        case 0..<5: later(number(1...120_000), .act(client: client, call: call, .hungUp))
        case 5: later(number(1...60_000), .act(client: client, call: call, .failed(-2531 - Int32(random.next() % 3))))
        case 6:
            if clients[client].parts[call].leg == 0 {
                later(number(1...500), .act(client: client, call: call, .cancelled))
            }
        default: break
        }
    }

    /// The client learns that the call is over for it.
    private mutating func learn(_ number: Int32, _ call: Int, _ client: Int) {
        guard clients[client].parts[call].ends.isEmpty else { return }
        clients[client].parts[call].ends.append(number)
        clients[client].parts[call].endedAt = now
        clients[client].parts[call].isRinging = false
        clients[client].parts[call].waiting = []
    }

    // MARK: Sessions

    /// The client is silent from now on, and its edge notices that after some time.
    mutating func die(_ client: Int) {
        clients[client].isDead = true
        let session = clients[client].session
        let delay = number(10...5000)
        for call in calls.indices {
            later(delay, .reportSession(client: client, call: call, .sessionEnded, session: session, tries: 0))
        }
        if chance(0.6) { later(number(100...30_000), .comeBack(client: client)) }
    }

    /// The program starts again, and remembers only what has ended.
    mutating func comeBack(_ client: Int) {
        clients[client].isDead = false
        clients[client].session += 1
        let session = clients[client].session
        for call in calls.indices {
            if clients[client].parts[call].ends.isEmpty { clients[client].parts[call] = SimulatedClient.Part() }
            clients[client].parts[call].waiting = []
            clients[client].parts[call].isFreshAt = now
            later(
                number(1...20), .reportSession(client: client, call: call, .sessionStarted, session: session, tries: 0))
        }
    }

    /// The edge reports until the owner has the report.
    mutating func reportSession(_ client: Int, _ call: Int, _ event: CallEvent, _ session: UInt64, _ tries: Int) {
        guard tries < 6 else { return }
        send(.request(call: call, client: client, event: event, session: session), isInside: true)
        later(500, .reportSession(client: client, call: call, event, session: session, tries: tries + 1))
    }

    // MARK: At the end

    mutating func checkClient(_ client: Int) {
        for call in calls.indices {
            let part = clients[client].parts[call]
            guard let leg = part.leg, let numbers = calls[call].numbers, leg < numbers.count else { continue }
            if let learned = part.ends.first {
                let isKnown = learned == numbers[leg] || learned == ErrorCode.callUnknown.number
                if !isKnown {
                    violate("client \(client) learned \(learned), and leg \(leg) of call \(call) ended otherwise")
                }
                if let ended = calls[call].endTimes[leg], let at = part.endedAt, part.isFreshAt < ended {
                    if at > ended + (loss > 0.1 ? 100_000 : 25_000) {
                        violate("client \(client) learned the end after \(at - ended) ms")
                    }
                }
                continue
            }
            if !clients[client].isDead {
                violate("client \(client), leg \(leg) of call \(call), never learned the end")
            }
        }
    }
}
