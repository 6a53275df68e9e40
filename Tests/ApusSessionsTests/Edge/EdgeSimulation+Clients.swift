import ApusCore
import ApusSessions

/// What clients, operators and the cluster do.
extension EdgeSimulation {
    mutating func act() {
        switch Int.random(in: 0..<100, using: &random) {
        case 0..<18: open()
        case 18..<34: resume()
        case 34..<40: choose()
        case 40..<48: leave()
        case 48..<72: listen()
        case 72..<80: sleep()
        case 80..<86: replaceOwner()
        case 86..<95: showMap(to: Int.random(in: edges.indices, using: &random))
        case 95..<98: ownerLearns()
        case 98: revoke()
        default: if chance(40) { restart(Int.random(in: edges.indices, using: &random)) }
        }
    }

    private mutating func open() {
        let identity = identities[Int.random(in: identities.indices, using: &random)]
        sessionCount += 1
        // Most often one of a few clients, so that they meet.
        let instance = chance(12) ? 0 : chance(15) ? UInt64.random(in: 2...9, using: &random) : 1
        let session = Self.session("s\(sessionCount)", identity.device, identity.access, instance: instance)
        let place = Place(edge: Int.random(in: edges.indices, using: &random), session: session.id)
        let link = addLink(place)
        guard edges[place.edge].machine.opening(session, link) == nil else { return fail("there is room for it") }
        ask(place.edge, .opening(session, link: link))
    }

    private mutating func resume() {
        guard let ticket = tickets.randomElement(using: &random), !isRevoked(ticket) else { return }
        let place = Place(edge: Int.random(in: edges.indices, using: &random), session: ticket.id)
        let wasHere = !openLinks(at: place).isEmpty
        let link = addLink(place)
        let (isConfirmed, actions) = edges[place.edge].machine.resumed(ticket, link)
        if !wasHere {
            presentSince[place] = step
            confirmed.remove(place)
        }
        if case .success(true) = isConfirmed, !confirmed.contains(place) {
            fail("\(place) is confirmed though its owner was not asked since it came back")
        }
        perform(actions, at: place.edge)
    }

    private mutating func choose() {
        guard let link = openLinks.randomElement(using: &random), let place = links[link]?.place else { return }
        perform(edges[place.edge].machine.chosen(place.session, link), at: place.edge)
    }

    /// A client closes a socket, or loses it. One whose session is being opened waits for the answer.
    private mutating func leave() {
        guard let link = openLinks.randomElement(using: &random), let place = links[link]?.place,
            tickets.contains(where: { $0.id == place.session })
        else { return }
        close(link, place)
    }

    mutating func close(_ link: Int, _ place: Place) {
        links[link]?.isEnded = true
        if openLinks(at: place).isEmpty { gone(place) }
        perform(edges[place.edge].machine.closed(place.session, link), at: place.edge)
    }

    /// The last socket of a session at an edge is gone.
    mutating func gone(_ place: Place) {
        presentSince[place] = nil
        confirmed.remove(place)
        granted[place] = nil
    }

    private mutating func listen() {
        guard let link = openLinks.randomElement(using: &random), let place = links[link]?.place,
            let ticket = tickets.first(where: { $0.id == place.session }), ticket.role == .app
        else { return }
        let device = chance(8) ? Self.nobody : Self.devices[Int.random(in: Self.devices.indices, using: &random)]
        let isUnderWay = asking[place]?[device]?.count ?? 0 > 0
        if isUnderWay, chance(70) { return }
        if isUnderWay { isCrossed.insert(place) }
        if chance(70) {
            guard case .success(let number) = edges[place.edge].machine.subscribing(place.session, device) else {
                return fail("\(place) may subscribe")
            }
            noteAsking(place, device)
            ask(place.edge, .subscribe(place.session, device, number))
        } else {
            granted[place]?.remove(device)
            guard let number = edges[place.edge].machine.forgetting(place.session, device) else { return }
            noteAsking(place, device)
            ask(place.edge, .forget(place.session, device, number))
        }
    }

    private mutating func noteAsking(_ place: Place, _ device: DeviceID) {
        let count = asking[place]?[device]?.count ?? 0
        asking[place, default: [:]][device] = Asking(count: count + 1, since: step)
    }

    private mutating func sleep() {
        guard let link = openLinks.randomElement(using: &random), let place = links[link]?.place,
            let ticket = tickets.first(where: { $0.id == place.session }), ticket.role == .device
        else { return }
        let isAsleep = Bool.random(using: &random)
        guard let number = edges[place.edge].machine.sleeping(place.session, isAsleep) else {
            return fail("\(place) may sleep")
        }
        ask(place.edge, .sleep(place.session, isAsleep, number))
    }

    private func isRevoked(_ session: Session) -> Bool { RevocationList(revoked).revokes(session) }

    private mutating func revoke() {
        guard let ticket = tickets.randomElement(using: &random) else { return }
        revoked.append(RevocationRecord(.token(ticket.token.tag), expires: .max))
        let list = RevocationList(revoked)
        for number in edges.indices {
            let (_, actions) = edges[number].machine.revoked(by: list)
            perform(actions, at: number)
        }
        if openLinks.contains(where: { links[$0]?.place.session == ticket.id }) {
            fail("a revoked session has a socket")
        }
    }

    // MARK: - The cluster

    mutating func addOwner(to number: Int) {
        var configuration = PresenceStateMachine.Configuration()
        configuration.placesMax = 3
        let epoch = identities[number].epoch + 1
        identities[number].owners.append(
            Owner(
                epoch: epoch,
                machine: PresenceStateMachine(configuration: configuration, epoch: epoch, now: now, wallSeconds: 0)))
    }

    private mutating func replaceOwner() { addOwner(to: Int.random(in: identities.indices, using: &random)) }

    mutating func showMap(to number: Int) {
        let newest = identities.map(\.epoch)
        guard edges[number].epochs != newest else { return }
        edges[number].epochs = newest
        edges[number].mapCount += 1
        if mutant == .missesMaps, edges[number].mapCount % 2 == 0 { return }
        let epochs = epochs(newest)
        perform(edges[number].machine.mapChanged(epoch: epochs), at: number)
    }

    private mutating func ownerLearns() {
        let number = Int.random(in: identities.indices, using: &random)
        for owner in identities[number].owners.indices.dropLast() { identities[number].owners[owner].isOver = true }
    }

    /// An edge dies with all its sockets, and starts anew.
    private mutating func restart(_ number: Int) {
        let dead = edges[number].node
        for link in openLinks where links[link]?.place.edge == number { links[link]?.isEnded = true }
        for place in presentSince.keys.filter({ $0.edge == number }) { gone(place) }
        confirmed = confirmed.filter { $0.edge != number }
        granted = granted.filter { $0.key.edge != number }
        asking = asking.filter { $0.key.edge != number }
        isCrossed = isCrossed.filter { $0.edge != number }
        refused = refused.filter { $0.edge != number }
        edges[number] = makeEdge(NodeID(name: dead.name, incarnation: dead.incarnation + 1))
        for identity in identities.indices {
            let last = identities[identity].owners.count - 1
            run(identities[identity].owners[last].machine.nodeLost(dead, now: now), of: identity, owner: last)
        }
    }

    // MARK: - Links

    private mutating func addLink(_ place: Place) -> Int {
        lastLink += 1
        if openLinks(at: place).isEmpty { presentSince[place] = step }
        links[lastLink] = Link(place: place)
        return lastLink
    }
}
