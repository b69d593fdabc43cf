import de.bwaldvogel.mongo.backend.CursorRegistry;
import de.bwaldvogel.mongo.backend.DatabaseResolver;
import de.bwaldvogel.mongo.backend.Index;
import de.bwaldvogel.mongo.backend.IndexKey;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import de.bwaldvogel.mongo.backend.memory.MemoryDatabase;
import de.bwaldvogel.mongo.backend.memory.index.MemoryUniqueIndex;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.exception.MongoServerError;
import de.bwaldvogel.mongo.oplog.NoopOplog;
import de.bwaldvogel.mongo.oplog.Oplog;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import java.util.Collection;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;

/**
 * Runs a MongoDB wire server in memory, with an oplog: `java -cp CLASSES MongoServer.java PORT`.
 *
 * The official drivers demand the wire version of MongoDB 4.4 and a replica set before they open change streams. The server
 * has what the tests need of both, but reports less, so the handshake reports it here. It ignores fields that it does not know, and MongoDB
 * refuses them, so they are refused here.
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
                KnownFields.check(command, query);
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

    /**
     * The fields that MongoDB 4.4 knows, the oldest version that the driver accepts, and its errors for others: codes, names and words. A field
     * of a later version is refused, because the driver sends it to every server.
     */
    private static class KnownFields {
        /** The fields that every command has. */
        private static final Set<String> GENERIC = Set.of(
                "$audit", "$client", "$clusterTime", "$configServerState", "$db", "$oplogQueryData", "$queryOptions", "$readPreference",
                "$replData", "allowImplicitCollectionCreation", "autocommit", "clientOperationKey", "comment", "coordinator",
                "databaseVersion", "lsid", "maxTimeMS", "maxTimeMSOpOnly", "readConcern", "shardVersion", "startTransaction", "stmtId",
                "tracking_info", "txnNumber", "writeConcern");
        private static final Map<String, Set<String>> OF_COMMANDS = Map.ofEntries(
                Map.entry("aggregate", Set.of(
                        "allowDiskUse", "bypassDocumentValidation", "collation", "cursor", "exchange", "explain", "fromMongos", "hint",
                        "isMapReduceCommand", "mergeByPBRT", "needsMerge", "pipeline", "runtimeConstants", "use44SortKeys", "useNewUpsert",
                        "$_passthroughToShard")),
                Map.entry("count", Set.of("collation", "fields", "hint", "limit", "query", "skip")),
                Map.entry("create", Set.of(
                        "autoIndexId", "capped", "collation", "flags", "idIndex", "indexOptionDefaults", "max", "pipeline", "recordPreImages",
                        "size", "storageEngine", "temp", "validationAction", "validationLevel", "validator", "viewOn")),
                Map.entry("createIndexes", Set.of("commitQuorum", "ignoreUnknownIndexOptions", "indexes")),
                Map.entry("delete", Set.of("bypassDocumentValidation", "deletes", "ordered", "stmtIds")),
                Map.entry("distinct", Set.of("collation", "key", "query")),
                Map.entry("find", Set.of(
                        "allowDiskUse", "allowPartialResults", "allowSpeculativeMajorityRead", "awaitData", "batchSize", "collation", "filter",
                        "hint", "limit", "max", "min", "noCursorTimeout", "ntoreturn", "oplogReplay", "projection", "readOnce", "returnKey",
                        "runtimeConstants", "showRecordId", "singleBatch", "skip", "sort", "tailable", "term", "_use44SortKeys",
                        "$_internalReadAtClusterTime", "$_requestResumeToken", "$_resumeAfter")),
                Map.entry("findAndModify", Set.of(
                        "arrayFilters", "bypassDocumentValidation", "collation", "fields", "hint", "new", "query", "remove",
                        "runtimeConstants", "sort", "update", "upsert")),
                Map.entry("getMore", Set.of("batchSize", "collection", "lastKnownCommittedOpTime", "term")),
                Map.entry("insert", Set.of("bypassDocumentValidation", "documents", "ordered", "stmtIds")),
                Map.entry("update", Set.of("bypassDocumentValidation", "ordered", "runtimeConstants", "stmtIds", "updates")));
        private static final Set<String> OF_UPDATES =
                Set.of("arrayFilters", "c", "collation", "hint", "multi", "q", "u", "upsert", "upsertSupplied");
        private static final Set<String> OF_DELETES = Set.of("collation", "hint", "limit", "q");
        private static final Set<String> OF_INDEXES = Set.of(
                "2dsphereIndexVersion", "_id", "background", "bits", "bucketSize", "coarsestIndexedLevel", "collation", "default_language",
                "dropDups", "expireAfterSeconds", "finestIndexedLevel", "hidden", "key", "language_override", "max", "min", "name", "ns",
                "partialFilterExpression", "sparse", "storageEngine", "textIndexVersion", "unique", "v", "weights", "wildcardProjection");
        private static final Set<String> OF_CHANGE_STREAMS = Set.of(
                "allChangesForCluster", "allowToRunOnConfigDB", "fullDocument", "fullDocumentBeforeChange", "resumeAfter",
                "showMigrationEvents", "showRawUpdateDescription", "startAfter", "startAtOperationTime");
        private static final Set<String> FULL_DOCUMENTS = Set.of("default", "updateLookup");
        private static final Set<String> OF_READ_CONCERNS =
                Set.of("afterClusterTime", "afterOpTime", "atClusterTime", "level", "provenance");
        private static final Set<String> OF_WRITE_CONCERNS =
                Set.of("fsync", "getLastError", "j", "provenance", "w", "wElectionId", "wOpTime", "wtimeout");

        /** Throws the error of MongoDB for the first field that it does not know. */
        static void check(String command, Document request) {
            Set<String> known = OF_COMMANDS.get(command);
            if (known == null) {
                return;
            }
            for (String field : request.keySet()) {
                if (!field.equals(command) && !known.contains(field) && !GENERIC.contains(field)) {
                    throw unknown(command, field, request);
                }
            }
            check(request.get("readConcern"), OF_READ_CONCERNS, field ->
                    new MongoServerError(72, "InvalidOptions", "Unrecognized option in readConcern: " + field));
            check(request.get("writeConcern"), OF_WRITE_CONCERNS, field -> failedToParse("unrecognized write concern field: " + field));
            switch (command) {
                case "aggregate":
                    check(request.get("cursor"), Set.of("batchSize"), field ->
                            badValue("cursor object can't contain fields other than batchSize"));
                    each(request.get("pipeline"), stage -> stage.get("$changeStream"), KnownFields::checkChangeStream);
                    break;
                case "createIndexes":
                    if (!Boolean.TRUE.equals(request.get("ignoreUnknownIndexOptions"))) {
                        each(request.get("indexes"), index -> index, KnownFields::checkIndex);
                    }
                    break;
                case "delete":
                    each(request.get("deletes"), delete -> delete, delete ->
                            check(delete, OF_DELETES, field -> unknownField("delete.deletes." + field)));
                    break;
                case "update":
                    each(request.get("updates"), update -> update, update ->
                            check(update, OF_UPDATES, field -> unknownField("update.updates." + field)));
                    break;
                default:
                    break;
            }
        }

        private static void checkChangeStream(Document stage) {
            check(stage, OF_CHANGE_STREAMS, field -> unknownField("$changeStream." + field));
            Object fullDocument = stage.getOrDefault("fullDocument", "default");
            if (!FULL_DOCUMENTS.contains(fullDocument)) {
                throw new MongoServerError(40575, "unrecognized value for the 'fullDocument' option to the $changeStream stage. "
                        + "Expected 'default' or 'updateLookup', got '" + fullDocument + "'");
            }
        }

        private static void checkIndex(Document index) {
            check(index, OF_INDEXES, field -> new MongoServerError(197, "InvalidIndexSpecificationOption",
                    "Error in specification " + index + " :: caused by :: The field '" + field
                            + "' is not valid for an index specification. Specification: " + index));
        }

        /** Checks a part of each document of a list. */
        private static void each(Object list, Function<Document, Object> part, java.util.function.Consumer<Document> check) {
            if (list instanceof Collection) {
                for (Object element : (Collection<?>) list) {
                    if (element instanceof Document && part.apply((Document) element) instanceof Document) {
                        check.accept((Document) part.apply((Document) element));
                    }
                }
            }
        }

        private static void check(Object document, Set<String> known, Function<String, MongoServerError> refuse) {
            if (document instanceof Document) {
                for (String field : ((Document) document).keySet()) {
                    if (!known.contains(field)) {
                        throw refuse.apply(field);
                    }
                }
            }
        }

        /** The error for a field of a command. The parsers of MongoDB 4.4 are of different ages, and so are their errors. */
        private static MongoServerError unknown(String command, String field, Document request) {
            switch (command) {
                case "aggregate":
                    return failedToParse("unrecognized field '" + field + "'");
                case "createIndexes":
                    return badValue("Invalid field specified for createIndexes command: " + field);
                case "find":
                case "getMore":
                    return failedToParse("Failed to parse: " + request + ". Unrecognized field '" + field + "'.");
                case "findAndModify":
                    return new MongoServerError(51177, "BSON field '" + field + "' is an unknown field.");
                default:
                    return unknownField(command + "." + field);
            }
        }

        private static MongoServerError unknownField(String path) {
            return new MongoServerError(40415, "BSON field '" + path + "' is an unknown field.");
        }

        private static MongoServerError failedToParse(String message) {
            return new MongoServerError(9, "FailedToParse", message);
        }

        private static MongoServerError badValue(String message) {
            return new MongoServerError(2, "BadValue", message);
        }
    }
}
