import ApusCore
import ApusSessions

/// What must be true when everything has come to rest.
extension EdgeSimulation {
    mutating func check() {
        for edge in edges.indices { checkEdge(edge) }
        for identity in identities.indices {
            checkPlaces(identity)
            checkListeners(identity)
        }
        counts.open = openLinks.count
    }

    /// The table has the sessions whose sockets are open, and nothing is left to be told.
    private mutating func checkEdge(_ edge: Int) {
        let places = openPlaces.filter { $0.edge == edge }
        if edges[edge].machine.sessionCount != places.count {
            fail("\(edges[edge].node) holds \(edges[edge].machine.sessionCount) sessions for \(places.count)")
        }
        var interestCount = places.count
        for place in places {
            guard let held = edges[edge].machine.held(place.session) else {
                fail("\(place) is not held")
                continue
            }
            if held.links != openLinks(at: place) { fail("\(place) has sockets \(held.links)") }
            if !held.isReported { fail("\(place) is not told") }
            if !held.isConfirmed { fail("\(place) is not confirmed") }
            if !isCrossed.contains(place), Set(held.devices) != granted[place] ?? [] {
                fail("\(place) listens to \(held.devices), and its client was told \(granted[place] ?? [])")
            }
            counts.subscribed += held.devices.count
            interestCount += held.devices.count
        }
        if edges[edge].machine.interestCount != interestCount {
            fail("\(edges[edge].node) looks for \(edges[edge].machine.interestCount) facts, not \(interestCount)")
        }
    }

    /// The owner knows where the sockets of its client are, and nobody else's; and whether it sleeps.
    private mutating func checkPlaces(_ number: Int) {
        guard let owner = identities[number].owners.last else { return }
        let present = openPlaces.filter { place in
            tickets.contains { $0.id == place.session && identity(of: $0) == number }
        }
        let here = Set(present.map { sessionPlace($0) })
        let known = Set(owner.machine.places)
        if known.subtracting(excused) != here.subtracting(excused) || !here.isSubset(of: known) {
            fail("the owner of \(number) knows \(known.map(\.session).sorted()), not \(here.map(\.session).sorted())")
        }
        let sessions = tickets.filter { ticket in present.contains { $0.session == ticket.id } }
        let clients = Set(sessions.map { $0.instance == 0 ? $0.id : "\($0.instance)" })
        if clients.count > 1 { fail("clients \(clients.sorted()) of \(number) have sockets") }
        if sessions.contains(where: { owner.machine.memory.superseded.contains($0.instance) }) {
            fail("a superseded client of \(number) has a socket")
        }
        for place in present {
            let isAsleep = edges[place.edge].machine.held(place.session)?.isAsleep ?? false
            if heard[sessionPlace(place)] != Heard(epoch: owner.epoch, isAsleep: isAsleep) {
                fail("the owner of \(number) did not hear last that \(place) is \(isAsleep ? "asleep" : "awake")")
            }
            counts.asleep += isAsleep ? 1 : 0
        }
        if known.isEmpty != (owner.machine.presence.online == .offline) {
            fail("\(number) is \(owner.machine.presence.online) with \(known.count) places")
        }
    }

    /// Who hears of a device is who listens to it.
    private mutating func checkListeners(_ number: Int) {
        guard let device = identities[number].device, var owner = identities[number].owners.last?.machine else {
            return
        }
        let listening = openPlaces.filter {
            edges[$0.edge].machine.held($0.session)?.devices.contains(device) == true
        }
        // Something changes, so that it is pushed.
        var actions: [PresenceStateMachine.Action]
        if let place = owner.place {
            actions = owner.setAsleep(owner.presence.online != .asleep, from: place, wallSeconds: 1)
        } else {
            let place = SessionPlace(node: edges[0].node, session: "probe")
            let order = SessionOrder(epoch: .max, sequence: 1)
            actions = owner.register(.init(place: place, instance: 99, order: order), now: now, wallSeconds: 1).actions
        }
        var heard: Set<SessionPlace> = []
        for case .push(_, let places) in actions { heard.formUnion(places) }
        if heard != Set(listening.map { sessionPlace($0) }) {
            fail("\(heard.count) hear of \(device), and \(listening.count) listen")
        }
    }

    private var openPlaces: Set<Place> { Set(openLinks.compactMap { links[$0]?.place }) }
}
