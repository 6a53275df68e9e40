import ApusCore
import ApusSessions

/// What is under way between edges and owners.
extension EdgeSimulation {
    mutating func ask(_ edge: Int, _ question: Question) {
        flights.append(.ask(edge: edge, question, life: edges[edge].node.incarnation))
    }

    /// Carries out what the machine of an edge says.
    ///
    /// - Parameter carriedOut: when the owner did what the machine was just told the answer of.
    mutating func perform(_ actions: [Machine.Action], at edge: Int, carriedOut: Int? = nil) {
        for action in actions {
            switch action {
            case .ask(let question): ask(edge, .machine(question))
            case .wait(let wait):
                flights.append(.pause(edge: edge, wait, life: edges[edge].node.incarnation))
            case .end(let ended, _):
                for link in ended { end(link) }
            case .confirm(let confirmedLinks):
                for link in confirmedLinks { confirm(link, carriedOut ?? step) }
            }
        }
    }

    /// A socket is told to end. That it is closed is noticed later.
    private mutating func end(_ link: Int) {
        guard let place = links[link]?.place, links[link]?.isEnded == false else {
            return fail("socket \(link) is ended, which is gone")
        }
        links[link]?.isEnded = true
        flights.append(.closed(link: link))
        if openLinks(at: place).isEmpty { gone(place) }
    }

    private mutating func confirm(_ link: Int, _ carriedOut: Int) {
        guard let place = links[link]?.place, let since = presentSince[place] else {
            return fail("socket \(link) is confirmed, which is gone")
        }
        if carriedOut < since { fail("\(place) is confirmed by an answer of before it came back") }
        confirmed.insert(place)
        counts.confirmed += 1
    }

    mutating func deliver() {
        let index = Int.random(in: flights.indices, using: &random)
        let flight = flights[index]
        flights[index] = flights[flights.count - 1]
        flights.removeLast()
        switch flight {
        case .ask(let edge, let question, let life):
            if edges[edge].node.incarnation == life { put(question, by: edge) }
        case .answer(let edge, let question, let answer, let time, let life):
            if edges[edge].node.incarnation == life { answered(edge, question, answer, carriedOut: time) }
        case .kick(let identity, let place, let code, let order, let epoch):
            if !isCalm, chance(5) { flights.append(flight) }
            kick(identity, place, code, order, epoch)
        case .push(let identity, let places, let epoch): push(identity, places, epoch)
        case .late(let edge, let identity): carryOutLate(edge, identity)
        case .tick(let identity, let epoch, let time):
            let owner = Int(epoch) - 1
            guard !identities[identity].owners[owner].isOver else { return }
            now = max(now, time)
            run(identities[identity].owners[owner].machine.tick(now: now, wallSeconds: 0), of: identity, owner: owner)
        case .pause(let edge, let wait, let life):
            guard edges[edge].node.incarnation == life else { return }
            now = max(now, wait.until)
            perform(edges[edge].machine.retryDue(wait), at: edge)
        case .closed(let link):
            guard let place = links[link]?.place else { return }
            perform(edges[place.edge].machine.closed(place.session, link), at: place.edge)
        }
    }

    // MARK: - To owners

    private mutating func put(_ question: Question, by edge: Int) {
        if mutant == .leavesSubscriptions, case .machine(let ask) = question, case .forget = ask.content,
            openLinks(at: Place(edge: edge, session: ask.session.id)).isEmpty
        {
            return reply(edge, question, .done)
        }
        guard let identity = identity(of: question, at: edge) else {
            if case .subscribe = question { return reply(edge, question, .failed(ApusError(.targetUnknown))) }
            return reply(edge, question, .done)
        }
        // The call goes to the owner that the edge knows.
        let owner = Int(edges[edge].epochs[identity]) - 1
        if !isCalm, chance(8) {
            if chance(50) {
                let life = edges[edge].node.incarnation
                late.append(Late(edge: edge, life: life, identity: identity, owner: owner, question: question))
                flights.append(.late(edge: edge, identity: identity))
            }
            return lose(question, by: edge)
        }
        guard !identities[identity].owners[owner].isOver else {
            // It says that the shard moved, and the call waits for the map.
            return chance(30) ? lose(question, by: edge) : ask(edge, question)
        }
        carryOutLate(edge, identity)
        var answer = carryOut(question, by: edge, identity, owner)
        if !isCalm, chance(5) {
            counts.doubled += 1
            answer = carryOut(question, by: edge, identity, owner)
        }
        reply(edge, question, !isCalm && chance(8) ? .failed(ApusError(.linkLost)) : answer)
    }

    private mutating func carryOutLate(_ edge: Int, _ identity: Int) {
        while let index = late.firstIndex(where: { $0.edge == edge && $0.identity == identity }) {
            let ask = late.remove(at: index)
            // What a process sent that died is ended with its links.
            guard ask.life == edges[edge].node.incarnation, !identities[identity].owners[ask.owner].isOver else {
                continue
            }
            counts.late += 1
            _ = carryOut(ask.question, by: edge, identity, ask.owner)
        }
    }

    private mutating func lose(_ question: Question, by edge: Int) {
        if case .machine(let ask) = question, case .unregister = ask.content {
            let place = Place(edge: edge, session: ask.session.id)
            // It is told once, and that was it.
            if refused.contains(place) { excused.insert(sessionPlace(place)) }
        }
        reply(edge, question, .failed(ApusError(.deadlineExceeded)))
    }

    private mutating func reply(_ edge: Int, _ question: Question, _ answer: EdgeAnswer) {
        flights.append(.answer(edge: edge, question, answer, at: step, life: edges[edge].node.incarnation))
    }

    private mutating func carryOut(_ question: Question, by edge: Int, _ identity: Int, _ owner: Int) -> EdgeAnswer {
        func place(_ session: String) -> SessionPlace { SessionPlace(node: edges[edge].node, session: session) }
        switch question {
        case .opening(let session, _): return register(session, place(session.id), false, identity, owner)
        case .machine(let ask):
            let place = place(ask.session.id)
            switch ask.content {
            case .register(let isAsleep): return register(ask.session, place, isAsleep, identity, owner)
            case .unregister:
                run(
                    identities[identity].owners[owner].machine
                        .unregister(place, isResumable: true, now: now, wallSeconds: 0), of: identity, owner: owner)
                return .done
            case .subscribe: return subscribe(place, identity, owner)
            case .forget: return forget(place, identity, owner)
            }
        case .subscribe(let session, _, _): return subscribe(place(session), identity, owner)
        case .forget(let session, _, _): return forget(place(session), identity, owner)
        case .sleep(let session, let isAsleep, _):
            let place = place(session)
            let machine = identities[identity].owners[owner].machine
            // One of a place that it does not know is no news to it.
            if machine.places.contains(where: { $0.session == session }) { hear(place, isAsleep, identity, owner) }
            run(
                identities[identity].owners[owner].machine.setAsleep(isAsleep, from: place, wallSeconds: 0),
                of: identity, owner: owner)
            return .done
        }
    }

    private mutating func register(
        _ session: Session, _ place: SessionPlace, _ isAsleep: Bool, _ identity: Int, _ owner: Int
    ) -> EdgeAnswer {
        if !identities[identity].owners[owner].isMemoryRead {
            identities[identity].owners[owner].isMemoryRead = true
            if let memory = identities[identity].memory.value {
                identities[identity].owners[owner].machine.restore(memory)
            }
        }
        let before = identities[identity].owners[owner].machine.memory
        let (order, actions) = identities[identity].owners[owner].machine.register(
            PresenceStateMachine.Registration(
                place: place, instance: session.instance, order: session.order == .none ? nil : session.order,
                isAsleep: isAsleep), now: now, wallSeconds: 0)
        let (after, epoch) = (
            identities[identity].owners[owner].machine.memory, identities[identity].owners[owner].epoch
        )
        // The records refuse what a former owner writes.
        if after != before, epoch >= identities[identity].memory.epoch { identities[identity].memory = (epoch, after) }
        if order != nil { hear(place, isAsleep, identity, owner) }
        run(actions, of: identity, owner: owner)
        return order.map { .registered($0) } ?? .failed(ApusError(.kicked))
    }

    private mutating func hear(_ place: SessionPlace, _ isAsleep: Bool, _ identity: Int, _ owner: Int) {
        heard[place] = Heard(epoch: identities[identity].owners[owner].epoch, isAsleep: isAsleep)
    }

    private mutating func subscribe(_ place: SessionPlace, _ identity: Int, _ owner: Int) -> EdgeAnswer {
        let (isAccepted, actions) = identities[identity].owners[owner].machine.subscribe(place, now: now)
        run(actions, of: identity, owner: owner)
        return isAccepted ? .done : .failed(ApusError(.overloaded))
    }

    private mutating func forget(_ place: SessionPlace, _ identity: Int, _ owner: Int) -> EdgeAnswer {
        run(identities[identity].owners[owner].machine.unsubscribe(place), of: identity, owner: owner)
        return .done
    }

    /// Carries out what an owner says.
    mutating func run(_ actions: [PresenceStateMachine.Action], of identity: Int, owner: Int) {
        let epoch = identities[identity].owners[owner].epoch
        for action in actions {
            switch action {
            case .kick(let place, let order): flights.append(.kick(identity: identity, place, .kicked, order, epoch))
            case .release(let place): flights.append(.kick(identity: identity, place, .linkLost, nil, epoch))
            case .push(_, let places): flights.append(.push(identity: identity, places, epoch))
            case .wake(let time): flights.append(.tick(identity: identity, epoch, time))
            case .idle:
                // It may be released, and made anew when it is asked for.
                guard chance(50) else { continue }
                var configuration = PresenceStateMachine.Configuration()
                configuration.placesMax = 3
                identities[identity].owners[owner].isMemoryRead = false
                identities[identity].owners[owner].machine = PresenceStateMachine(
                    configuration: configuration, epoch: epoch, now: now, wallSeconds: 0)
            }
        }
    }

    // MARK: - To edges

    private mutating func answered(_ edge: Int, _ question: Question, _ answer: EdgeAnswer, carriedOut: Int) {
        var failure: ApusError?
        if case .failed(let error) = answer { failure = error }
        switch question {
        case .machine(let ask):
            var answer = answer
            if mutant == .takesFailuresForAnswers, let failure, failure.code != .kicked {
                if case .register = ask.content { answer = .registered(ask.session.order) } else { answer = .done }
            }
            perform(edges[edge].machine.answered(ask, answer, now: now), at: edge, carriedOut: carriedOut)
        case .opening(let session, let link): opened(edge, session, link, answer)
        case .subscribe(let session, let device, let number):
            let place = Place(edge: edge, session: session)
            let since = asking[place]?[device]?.since ?? 0
            asking[place]?[device]?.count -= 1
            if failure == nil, let present = presentSince[place], since >= present {
                granted[place, default: []].insert(device)
            }
            perform(edges[edge].machine.subscribed(session, device, number, failure), at: edge)
        case .forget(let session, let device, let number):
            asking[Place(edge: edge, session: session)]?[device]?.count -= 1
            perform(edges[edge].machine.forgotten(session, device, number, isDone: failure == nil), at: edge)
        case .sleep(let session, _, let number):
            perform(edges[edge].machine.slept(session, number, isDone: failure == nil), at: edge)
        }
    }

    private mutating func opened(_ edge: Int, _ session: Session, _ link: Int, _ answer: EdgeAnswer) {
        let place = Place(edge: edge, session: session.id)
        let result: Result<SessionOrder, ApusError>
        switch answer {
        case .registered(let order): result = .success(order)
        case .failed(let error): result = .failure(error)
        case .done: return fail("an opening has no order")
        }
        let (outcome, actions) = edges[edge].machine.opened(session.id, result)
        switch outcome {
        case .success(let session):
            tickets.append(session)
            confirmed.insert(place)
        case .failure:
            // The client is told by the answer.
            links[link]?.isEnded = true
            if case .failure = result { refused.insert(place) }
            gone(place)
        }
        perform(actions, at: edge)
    }

    private mutating func kick(
        _ identity: Int, _ place: SessionPlace, _ code: ErrorCode, _ order: SessionOrder?, _ epoch: Epoch
    ) {
        guard let edge = edge(of: place) else { return }
        let isOpening = !tickets.contains { $0.id == place.session }
        if code == .kicked { counts.kicked += 1 } else { counts.released += 1 }
        if isOpening, edges[edge].machine.held(place.session)?.links.isEmpty == false {
            counts.early += 1
            if mutant == .losesEarlyKicks { return }
        }
        if mutant == .keepsKickedSockets, !isOpening {
            guard let held = edges[edge].machine.held(place.session), order ?? held.order >= held.order else { return }
            for link in held.links where links[link]?.isEnded == false { end(link) }
            return
        }
        let said = mutant == .believesFormerOwners ? 0 : epoch
        let actions = edges[edge].machine.kicked(place.session, code, by: order, epoch: said)
        if epoch < edges[edge].epochs[identity] {
            counts.former += 1
            if !actions.isEmpty { fail("a former owner ended \(place.session)") }
        }
        perform(actions, at: edge)
    }

    private mutating func push(_ identity: Int, _ places: [SessionPlace], _ epoch: Epoch) {
        guard let device = identities[identity].device else { return }
        for number in edges.indices {
            let sessions = places.filter { $0.node == edges[number].node }.map(\.session)
            let said = mutant == .believesFormerOwners ? 0 : epoch
            let heard = edges[number].machine.presenceChanged(device, sessions: sessions, epoch: said)
            if epoch < edges[number].epochs[identity], !heard.isEmpty { fail("a former owner is heard") }
            for link in heard where links[link]?.isEnded != false { fail("a socket hears that is gone") }
        }
    }
}
