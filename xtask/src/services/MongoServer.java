import de.bwaldvogel.mongo.backend.CursorRegistry;
import de.bwaldvogel.mongo.backend.DatabaseResolver;
import de.bwaldvogel.mongo.backend.Index;
import de.bwaldvogel.mongo.backend.IndexKey;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import de.bwaldvogel.mongo.backend.memory.MemoryDatabase;
import de.bwaldvogel.mongo.backend.memory.index.MemoryUniqueIndex;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.oplog.NoopOplog;
import de.bwaldvogel.mongo.oplog.Oplog;
import de.bwaldvogel.mongo.wire.message.MongoMessage;

/**
 * Runs a MongoDB wire server in memory, with an oplog: `java -cp CLASSES MongoServer.java PORT`.
 *
 * The official drivers demand the wire version of MongoDB 4.4 and a replica set before they open change streams. The server
 * has what the tests need of both, but reports less, so the handshake reports it here.
 */
public class MongoServer {
    private static final int WIRE_VERSION = 13;

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        String address = "127.0.0.1:" + port;
        MemoryBackend backend = new MemoryBackend() {
            @Override
            public MemoryDatabase openOrCreateDatabase(String name) {
                return new IndexedDatabase(name, getCursorRegistry());
            }

            @Override
            public Document handleMessage(MongoMessage message) {
                Document request = message.getDocument();
                String command = request.keySet().iterator().next();
                if (command.equals("hello")) {
                    // The server looks at the first field, so the order counts.
                    Document rest = new Document(request);
                    rest.remove("hello");
                    request.clear();
                    request.put("ismaster", 1);
                    request.putAll(rest);
                }
                Document response = super.handleMessage(message);
                return isHandshake(command) ? asReplicaSet(response, address) : response;
            }

            @Override
            public Document handleCommand(
                    io.netty.channel.Channel channel, String database, String command, Document query) {
                Document response = super.handleCommand(channel, database, command, query);
                return isHandshake(command) ? asReplicaSet(response, address) : response;
            }
        };
        de.bwaldvogel.mongo.MongoServer server = new de.bwaldvogel.mongo.MongoServer(backend);
        server.enableOplog();
        server.bind("127.0.0.1", port);
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdownNow));
        Thread.currentThread().join();
    }

    private static boolean isHandshake(String command) {
        return command.equalsIgnoreCase("ismaster") || command.equalsIgnoreCase("hello");
    }

    private static Document asReplicaSet(Document response, String address) {
        response.put("maxWireVersion", WIRE_VERSION);
        response.put("isWritablePrimary", true);
        response.put("ismaster", true);
        response.put("logicalSessionTimeoutMinutes", 30);
        response.put("setName", "tests");
        response.put("hosts", java.util.List.of(address));
        response.put("me", address);
        return response;
    }

    /**
     * A database whose collections find documents by their `_id`, whatever else a query asks for.
     *
     * The databases of stores leave nothing in the oplog. No test watches them, and they would fill it: the server keeps it in memory,
     * and reads all of it for every change stream.
     */
    private static class IndexedDatabase extends MemoryDatabase {
        private static final String OF_STORES = "lzs_";
        private final boolean isOfStore;

        IndexedDatabase(String name, CursorRegistry cursors) {
            super(name, cursors);
            isOfStore = name.startsWith(OF_STORES);
        }

        private Oplog mine(Oplog oplog) {
            return isOfStore ? NoopOplog.get() : oplog;
        }

        @Override
        public Document handleCommand(
                io.netty.channel.Channel channel,
                String command,
                Document query,
                DatabaseResolver databases,
                Oplog oplog) {
            return super.handleCommand(channel, command, query, databases, mine(oplog));
        }

        @Override
        public void drop(Oplog oplog) {
            super.drop(mine(oplog));
        }

        @Override
        protected Index<Integer> openOrCreateUniqueIndex(
                String collection, String name, java.util.List<IndexKey> keys, boolean sparse) {
            boolean isOfIds = keys.size() == 1 && keys.get(0).getKey().equals("_id");
            return isOfIds ? new IdIndex(name, keys, sparse) : super.openOrCreateUniqueIndex(collection, name, keys, sparse);
        }
    }

    /**
     * The index on `_id`. The server uses it only for queries of `_id` alone, and reads the whole collection for `_id` and a version.
     * What the index finds is matched with the whole query afterwards.
     */
    private static class IdIndex extends MemoryUniqueIndex {
        IdIndex(String name, java.util.List<IndexKey> keys, boolean sparse) {
            super(name, keys, sparse);
        }

        @Override
        public synchronized boolean canHandle(Document query) {
            return query.containsKey("_id") && super.canHandle(id(query));
        }

        @Override
        public synchronized Iterable<Integer> getPositions(Document query) {
            return super.getPositions(id(query));
        }

        private static Document id(Document query) {
            return new Document("_id", query.get("_id"));
        }
    }
}
